"""To compare kinds on one text: budgets, the ladder, the report."""
