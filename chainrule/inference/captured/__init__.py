"""Decoding steps captured as CUDA graphs, and kept from one call to the next."""
