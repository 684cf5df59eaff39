"""Bugs that a developer could make, and the tests that must catch them: a file for each folder of chainrule/.

A new file here needs no entry anywhere: the list `BUGS` of every module belongs to them.
"""

from importlib import import_module
from pkgutil import iter_modules

from mutations.bugs.bug import Bug

MODULES = [import_module(f"mutations.bugs.{module.name}") for module in iter_modules(__path__)]
BUGS: list[Bug] = [bug for module in MODULES for bug in getattr(module, "BUGS", [])]
