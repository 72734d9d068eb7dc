"""Federated learning that holds fast when clients go missing or go bad."""
