"""The server of the live page."""
