"""Comparison of kinds on one text: budgets, the ladder, the report."""
