"""How clients are asked: in this process, or in worker processes on this machine.

Real sites are in flower/.
"""
