"""The only place that changes a model."""
