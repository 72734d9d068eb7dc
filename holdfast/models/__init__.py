"""Networks that come with Holdfast, and how weights and buffers are read and filled.

Encoders, which nobody trains here, belong in encoders/.
"""
