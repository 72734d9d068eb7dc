"""The same experiment on Flower. All imports of flwr are in this folder, those of private names in fast.py."""
