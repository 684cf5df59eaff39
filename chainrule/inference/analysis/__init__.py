"""Analysis of what a model makes of its context: gradients by time step, scores of heads, bits by position."""
