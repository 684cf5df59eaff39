"""Preferences from clicks (`chainrule prefer`): the page on which people say which of two answers is better."""
