"""Formats of other programs: ARPA files, word vectors, Hugging Face checkpoints."""
