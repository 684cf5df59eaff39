"""Evaluation by `chainrule eval`, beside bits per byte: exams, few-shot prompts, bits by position."""
