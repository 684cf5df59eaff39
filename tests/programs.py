"""The programs in benchmarks/, which are no package, as modules."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def program(name: str) -> Path:
    """The file of a benchmark. Its name is unique, whichever folder it is in."""
    [path] = (ROOT / "benchmarks").rglob(f"{name}.py")
    return path


def benchmark(name: str) -> ModuleType:
    """Its module. As when it is run, it can import what is in its folder."""
    path = program(name)
    spec = spec_from_file_location(f"benchmarks_{name}", path)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module                        # dataclasses look their module up
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module
