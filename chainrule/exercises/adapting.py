"""Adapters, read as source: which functions an `adapters.py` has, and the part of it that binds some exercises."""

import ast
from collections.abc import Sequence
from pathlib import Path


def adapter_names(path: Path, module: str | None = None) -> set[str]:
    """The functions of an `adapters.py`; with `module`: those that import from this module."""
    return {node.name for node in _functions(ast.parse(path.read_text(encoding="utf-8")))
            if module is None or _imports(node, module)}


def select_adapters(path: Path, modules: Sequence[str]) -> str:
    """The source of an `adapters.py` without the functions that bind other modules than these."""
    source = path.read_text(encoding="utf-8")
    lines, kept = source.splitlines(keepends=True), []
    functions = _functions(ast.parse(source))
    first = functions[0].lineno - 1 if functions else len(lines)
    for node in functions:
        if any(_imports(node, module) for module in modules):
            kept.append("".join(lines[node.lineno - 1 : node.end_lineno]))
    return "\n\n".join(["".join(lines[:first]).rstrip() + "\n", *kept])


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in tree.body if isinstance(node, ast.FunctionDef)]


def _imports(node: ast.FunctionDef, module: str) -> bool:
    return any(isinstance(part, ast.ImportFrom) and part.module == module for part in ast.walk(node))
