"""The cases of mangle.py: a copy of a run, a file or a command, one change to it, and the commands that read it.

A case is made from a seed and its number alone. `strict` cases must give the answer of the unchanged copy, or a clear
line: runs, whose files are sealed, and caches. Other files have no checksum, so a changed one may hold another valid
table or model.
"""

import contextlib
import hashlib
import io
import json
import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mangle_changes import change_bytes, change_file
from mangle_readings import Reading
from mangle_runs import Trained
from mangle_values import settings_of, wrong_value


@dataclass(frozen=True)
class Case:
    number: int
    what: str                       # run, resealed, file, setting, option, cache
    about: str                      # what was changed, for people
    words: Sequence[Sequence[str]]
    strict: bool = False            # whether the answer of the unchanged copy is the only right one
    refused: bool = False           # whether no answer at all is right: the value makes no sense
    change: Callable[[Path], None] = field(default=lambda folder: None, compare=False)

    @property
    def reads(self) -> set[str]:
        """The runs that it needs."""
        return {word.split("/")[1] for words in self.words for word in words if word.startswith("runs/")}


def make_case(number: int, seed: int, runs: Sequence[Trained], files: Sequence[Reading]) -> Case:
    rng = random.Random(seed * 1_000_003 + number)
    what = rng.choices(("run", "resealed", "file", "setting", "option", "cache"), (18, 22, 32, 20, 5, 3))[0]
    if what in ("run", "resealed"):
        return _mangled_run(number, what, rng, rng.choice(runs))
    if what == "file":
        return _mangled_file(number, rng, rng.choice(files))
    if what == "option":
        return _wrong_option(number, rng, rng.choice(runs))
    counted = [run for run in runs if run.task == "lm" and run.kind in ("bigram", "ngram", "unigram")]
    if what == "cache" and counted:
        return _mangled_cache(number, rng, rng.choice(counted))
    return _wrong_setting(number, rng, rng.choice(runs))


def _mangled_run(number: int, what: str, rng: random.Random, run: Trained) -> Case:
    name = rng.choice(("recipe.json", "recipe.json", "tokenizer.json", "model.safetensors", "model.safetensors",
                       "tokenizer_config.json", "log.jsonl"))
    uses, token = rng.choice(run.uses), rng.getrandbits(64)

    def change(folder: Path) -> None:
        path = folder / "runs" / run.name
        change_file(path / name, random.Random(token), folder)
        if what == "resealed":
            reseal(path)

    strict = what == "run" or name in ("tokenizer_config.json", "log.jsonl")
    return Case(number, what, f"{run.name}/{name}", [uses], strict, change=change)


def reseal(path: Path) -> None:
    """recipe.json as if it had been written so: the sizes and hashes of the files beside it, and its own hash."""
    from chainrule.files import SEAL, seal_of

    try:
        about = json.loads((path / "recipe.json").read_text(encoding="utf-8"))
        for name, facts in about["files"].items():
            content = (path / name).read_bytes()
            facts |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        about = about if "about" in locals() else None
    if isinstance(about, dict):
        about[SEAL] = seal_of(about)
        (path / "recipe.json").write_text(json.dumps(about), encoding="utf-8")


def _mangled_file(number: int, rng: random.Random, reading: Reading) -> Case:
    token = rng.getrandbits(64)

    def change(folder: Path) -> None:
        change_file(folder / "data" / reading.file, random.Random(token), folder)

    return Case(number, "file", reading.file, reading.uses, change=change)


def _mangled_cache(number: int, rng: random.Random, run: Trained) -> Case:
    token = rng.getrandbits(64)
    words = [*run.train_words, "--out", "made", "--json"]

    def change(folder: Path) -> None:
        train_first(run, folder)
        rng = random.Random(token)
        found = sorted(path for path in (folder / "cache").rglob("*") if path.is_file())
        change_bytes(rng.choice(found), rng)

    return Case(number, "cache", run.name, [words], strict=True, change=change)


def train_first(run: Trained, folder: Path) -> None:
    """Fills the cache: what is in it counts for the very files that it was made of, not for copies."""
    from chainrule.cli import main

    with contextlib.chdir(folder), contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        os.environ["CHAINRULE_CACHE"] = str(folder / "cache")
        main([*run.train_words, "--out", "first"])


def _wrong_setting(number: int, rng: random.Random, run: Trained) -> Case:
    name, hint = rng.choice(settings_of(run))
    value, refused = wrong_value(rng, hint, name.rpartition(".")[2])
    given = {**run.settings, name: value}
    words = Trained(run.name, run.kind, run.task, run.data, given, run.base).train_words
    return Case(number, "setting", f"{run.name} {name}={value[:40]}", [[*words, "--out", "made", "--json"]],
                refused=refused)


def _wrong_option(number: int, rng: random.Random, run: Trained) -> Case:
    from argparse import ArgumentParser

    from chainrule.cli import COMMANDS

    uses = list(rng.choice(run.uses))
    parser = ArgumentParser(add_help=False)
    COMMANDS[uses[0]].arguments(parser)
    options = [action.option_strings[0] for action in parser._actions if action.option_strings and action.nargs != 0]
    option = rng.choice(options)
    value, _ = wrong_value(rng, float, option)
    return Case(number, "option", f"{run.name} {uses[0]} {option} {value[:40]}", [[*uses, f"{option}={value}"]])


def copy_material(material: Path, folder: Path, case: Case) -> None:
    """What the case reads, in a folder of its own; data that it does not change is linked."""
    folder.mkdir(parents=True)
    shutil.copytree(material / "data", folder / "data")
    for name in case.reads:
        shutil.copytree(material / "runs" / name, folder / "runs" / name)
