"""A PyTorch app for Flower that gains FedDig and FedTest in a few lines."""
