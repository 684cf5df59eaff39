"""The units of text, one a file."""
