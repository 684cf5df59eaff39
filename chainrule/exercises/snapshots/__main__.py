"""Writes the snapshots of all exercises again: `python -m chainrule.exercises.snapshots`."""

from chainrule.exercises.snapshots import write_all

write_all()
