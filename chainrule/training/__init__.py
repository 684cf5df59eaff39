"""Training: the only package that changes a model."""
