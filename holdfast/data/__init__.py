"""What is learnt: tasks, samples, how they are dealt out, and the sources they are read from.

Networks belong in models/, public features in encoders/.
"""
