"""Defaults: the settings that were not given, chosen from the data, the kind, the task, the device and the budget."""
