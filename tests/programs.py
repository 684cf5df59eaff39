"""The programs in benchmarks/, which are no package, as modules."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[1] / "benchmarks"


def benchmark(name: str) -> ModuleType:
    spec = spec_from_file_location(f"benchmarks_{name}", FOLDER / f"{name}.py")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module                        # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
