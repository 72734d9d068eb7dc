"""The FedDig paper's tables and figures, played again: ours beside the paper's numbers."""
