"""The page on which people say which of two answers is better."""
