"""The endpoints of the server: OpenAI's, those of chainrule, and the live page's, a file each."""
