"""Views of tasks: votes for a class, the word that was hidden, what a tag depends on; and how those models read."""
