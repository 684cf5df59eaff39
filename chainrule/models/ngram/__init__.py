"""The n-gram language model: counts, smoothing, pruning, look-up."""
