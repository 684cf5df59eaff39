"""Inference with any language model, through the protocol alone: score, sample, search, evaluate."""
