"""Tokenizers: bytes, characters, words, byte-level BPE, and any tokenizer.json."""
