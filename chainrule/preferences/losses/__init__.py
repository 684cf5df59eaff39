"""Losses of a pair of answers, or of one with a thumb up or down: each its formula, as a pure function."""
