"""The Python interface to training: `chainrule.train`, which trains a model on a text and returns its Run.

    run = chainrule.train("book.txt", kind="gpt", minutes=5, out="runs/mine", model_layers=4)
    run.generate("The ", tokens=100)

`chainrule.load` returns the same Run from its folder (run.py); `chainrule.look` shows it (viewer/notebook.py). The
command line is made of the same functions.
"""

import tomllib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias

from chainrule.defaults.choose import choose_defaults
from chainrule.defaults.example_defaults import default_kind
from chainrule.defaults.rates import SIZES
from chainrule.device import choose_device, fastest_threads
from chainrule.errors import UserError, did_you_mean
from chainrule.progress import say
from chainrule.recipe import Recipe, over
from chainrule.run import Run, load
from chainrule.settings import flatten
from chainrule.tasks import find_task, recipe_for
from chainrule.text.synthetic import LANGUAGES
from chainrule.training.finetune import finetune_recipe
from chainrule.training.pipeline import Observer, make_run

Files: TypeAlias = str | Path | Sequence[str | Path]
"""Files, folders, globs, or names from `chainrule data`: one or several."""

def train(
    text: Files,
    *,
    kind: str | None = None,
    task: str | None = None,
    out: str | Path | None = None,
    valid: Files = (),
    test: Files = (),
    minutes: float | None = None,
    base: str | Path | Run | None = None,
    recipe: str | Path | None = None,
    settings: Mapping[str, Any] = {},
    overwrite: bool = False,
    device: str = "auto",
    observe: Observer | None = None,
    **keywords: Any,
) -> Run:
    """Trains a model on `text` and writes its run to `out`; a finished run of the same recipe and text is loaded.

    `base`: a run to start from (fine-tuning); `recipe`: a TOML file of settings; `settings`: dotted names and values,
    {"model.layers": 4}, which can also be keywords, model_layers=4. `chainrule settings` lists them all. `observe` is
    called with the model, as it is then, and each record of the log: a dict, as in log.jsonl.
    """
    texts, held_out = as_list(text), as_list(valid)
    given = dotted(keywords)
    if not texts:
        raise UserError("there is no text to train on: the list is empty.")
    if twice := settings.keys() & given.keys():
        raise UserError(f"{min(twice)} is given twice, in settings and as a keyword.")
    with threads_for(minutes, device):
        made_by = training_recipe(
            texts, kind=kind, task=task, base=base.path if isinstance(base, Run) else base, recipe=recipe,
            valid=held_out, minutes=minutes, device=device, settings={**settings, **given}, out=out,
        )
        made = make_run(
            texts, made_by, Path(out) if out is not None else default_out(made_by.kind, texts), valid=held_out,
            test=as_list(test), overwrite=overwrite, device=device, observe=observe,
        )
    return load(made.path, device)


def threads_for(minutes: float | None, device: str) -> AbstractContextManager[Any]:
    """Against the clock on a CPU: the number of threads that is fastest there now."""
    return nullcontext() if minutes is None or choose_device(device).type != "cpu" else fastest_threads()


def as_list(files: Files) -> list[str]:
    return [str(files)] if isinstance(files, str | Path) else [str(file) for file in files]


def dotted(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Settings given as keywords, by their dotted names: model_layers -> model.layers."""
    return {name if "." in name else name.replace("_", ".", 1): value for name, value in keywords.items()}


def training_recipe(
    texts: Sequence[str],
    *,
    kind: str | None,
    task: str | None,
    base: str | Path | None,
    recipe: str | Path | None,
    valid: Sequence[str],
    minutes: float | None,
    settings: Mapping[str, Any],
    device: str,
    out: str | Path | None = None,
) -> Recipe:
    """The recipe of a training run: the settings of a file, then those given; the rest is chosen for the data.

    With a file nothing is chosen that it could have said, unless `minutes` are given and it has no size. `out`: where
    the run will be, or has begun.
    """
    table = {} if recipe is None else flatten(read_toml(Path(recipe)))
    from_file = {name: str(table.pop(name)) for name in ("kind", "task", "from") if name in table}
    given = over(table, ({} if minutes is None else {"train.minutes": minutes}) | dict(settings))
    kind, base = kind or from_file.get("kind"), base or from_file.get("from")
    if base is None and all(is_language(text) for text in texts):
        given = {"text.tokenizer": "characters"} | given    # they have no words
    task = task or from_file.get("task", "lm")
    if base is None and find_task(task).needs_base:
        raise UserError(f"--task {task} tunes a language model that is trained already: --from RUN says which.")
    if base is not None:
        chosen = finetune_recipe(base, given, task, kind)
        refuse_settings(texts, chosen)
        return chosen
    if kind is None:
        kind = default_kind(task, texts, given, valid, device)
        if "train.minutes" in given and find_task(task).model_class(kind).learns_by == "counting":
            say(f"{kind}, the default of --task {task}, learns by counting and ends by itself: it does not "
                f"use the {given['train.minutes']} minutes")
            given = {name: value for name, value in given.items() if name != "train.minutes"}
    if "train.minutes" in given:
        refuse_minutes(kind, task)
    chosen = recipe_for(kind, given, task)
    refuse_settings(texts, chosen)
    where = Path(out) if out is not None else default_out(kind, texts)
    whole = recipe is not None and (minutes is None or any(f"model.{size}" in table for size in SIZES))
    return choose_defaults(chosen, given, texts, valid=valid, device=device, out=where, fixed=whole)


def is_language(text: str) -> bool:
    """Whether it names a synthetic language (text/synthetic.py), all of it or one split."""
    return text.partition(":")[0] in LANGUAGES and not Path(text).exists()


def refuse_settings(texts: Sequence[str], recipe: Recipe) -> None:
    """Refuses a word such as `order=5`: a setting without the part before its dot."""
    names = [name for name in flatten(recipe.as_dict()) if "." in name]
    for word in texts:
        if "=" in word and not Path(word).exists():
            name = word.partition("=")[0]
            near = [full for full in names if full.partition(".")[2] == name] or names
            raise UserError(f"{word} is neither a text nor a setting.{did_you_mean(name, near)}")


def refuse_minutes(kind: str, task: str) -> None:
    if find_task(task).model_class(kind).learns_by == "counting":
        raise UserError(f"a budget in minutes is for kinds that learn by gradient descent; {kind} learns by counting, "
                        "in as many passes as it needs. Leave it out, or choose another kind: lstm, gpt, ….")


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"the recipe {path}: there is no such file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"the recipe {path} is not TOML: {error}.") from error


def default_out(kind: str, texts: Sequence[str]) -> Path:
    return Path(f"runs/{kind}-{text_name(texts[0])}")


def text_name(text: str) -> str:
    """book.txt.gz -> book, ptb:test -> ptb-test"""
    return "stdin" if text == "-" else Path(text).resolve().name.partition(".")[0].replace(":", "-") or "text"
