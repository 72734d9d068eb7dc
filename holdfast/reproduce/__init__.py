"""The papers' tables and figures, played again: ours beside the papers' numbers."""
