"""Text to tokens on disk to batches."""
