"""Tokenizers: bytes, characters, words, BPE, and trained ones."""
