"""Bugs that a developer could make, and the tests that must catch them: a file for each folder of chainrule/.

A new file here or in a folder below needs no entry anywhere: the list `BUGS` of every module belongs to them.
"""

from importlib import import_module
from pathlib import Path

from mutations.bugs.bug import Bug

HERE = Path(__file__).parent
FILES = sorted(path.relative_to(HERE.parents[1]) for path in HERE.rglob("*.py") if path != Path(__file__))
MODULES = [import_module(".".join(file.with_suffix("").parts)) for file in FILES]
BUGS: list[Bug] = [bug for module in MODULES for bug in getattr(module, "BUGS", [])]
