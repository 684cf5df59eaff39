"""`chainrule train`: a text in, a model out."""

import tomllib
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chainrule.compare.budgets import turned
from chainrule.errors import UserError, did_you_mean
from chainrule.progress import say, speaks
from chainrule.recipe import Recipe, over
from chainrule.settings import flatten
from chainrule.tasks.registry import EXAMPLES, class_for, recipe_for
from chainrule.training.finetune import recipe_on
from chainrule.training.pipeline import Made, make_run

NEXT = """Try next:
  chainrule sample {run} --prompt "The "
  chainrule score {run} TEXT
  chainrule eval {run} TEXT"""
NEXT_OF_TASK = """Try next:
  chainrule predict {run} TEXT
  chainrule eval {run} EXAMPLES"""
NEXT_OF_PRETRAINING = """Try next:
  chainrule train EXAMPLES --task {task} --from {run}"""
NEXT_OF_VECTORS = """Try next:
  chainrule eval {run} QUESTIONS
  chainrule export {run} vectors.txt --to word2vec"""


def train(args: Namespace) -> dict[str, Any]:
    recipe = recipe_from(args)
    refuse_settings(args.text, recipe)
    if args.minutes is not None and recipe.base is None:
        recipe = turned(recipe, given_by(args)[0], args.text, args.valid, args.minutes, args.device)
    out = Path(args.out or f"runs/{recipe.kind}-{text_name(args.text[0])}")
    made = make_run(
        args.text, recipe, out, valid=args.valid, test=args.test, overwrite=args.overwrite, device=args.device
    )
    if not args.json and speaks():
        tell(made, next_for(recipe))
    return {"run": str(made.path), "interrupted": made.interrupted, "finished": made.finished, **result_of(made)}


def next_for(recipe: Recipe) -> str:
    if recipe.task in EXAMPLES:
        return NEXT_OF_TASK
    if recipe.task != "lm":
        return NEXT_OF_PRETRAINING.replace("{task}", "classify" if recipe.task == "mask" else "translate")
    return NEXT_OF_VECTORS if class_for(recipe.kind, recipe.task).learns_by == "pairs" else NEXT


def recipe_from(args: Namespace) -> Recipe:
    """The file's settings, and over them those of the command line."""
    given, from_file = given_by(args)
    kind, base = args.kind or from_file.get("kind"), args.base or from_file.get("from")
    task = args.task or from_file.get("task", "lm")
    if base is None and "train.minutes" in given:
        refuse_minutes(kind or "ngram", task)
    return recipe_for(kind or "ngram", given, task) if base is None else recipe_on(base, given, task, kind)


def refuse_minutes(kind: str, task: str) -> None:
    if class_for(kind, task).learns_by == "counting":
        raise UserError(f"--minutes is for kinds that learn by gradient; {kind} counts, which takes the time it takes. "
                        "Leave it out, or choose --kind lstm, gpt, ….")


def given_by(args: Namespace) -> tuple[dict[str, Any], dict[str, str]]:
    """Dotted settings, and what the file says beside them."""
    given = flatten(read_toml(Path(args.recipe))) if args.recipe else {}
    from_file: dict[str, str] = {name: str(given.pop(name)) for name in ("kind", "task", "from") if name in given}
    minutes = {} if args.minutes is None else {"train.minutes": args.minutes}
    return over(given, minutes | args.settings), from_file


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"--recipe {path}: there is no such file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"--recipe {path} is not TOML: {error}.") from error


def refuse_settings(texts: list[str], recipe: Recipe) -> None:
    """`order=5` is a setting without its dot, not a text."""
    names = [name for name in flatten(recipe.as_dict()) if "." in name]
    for word in texts:
        if "=" in word and not Path(word).exists():
            name = word.partition("=")[0]
            near = [full for full in names if full.partition(".")[2] == name] or names
            raise UserError(f"{word} is neither a text nor a setting.{did_you_mean(name, near)}")


def text_name(text: str) -> str:
    """book.txt.gz -> book, ptb:test -> ptb-test"""
    return "stdin" if text == "-" else Path(text).resolve().name.partition(".")[0].replace(":", "-") or "text"


def result_of(made: Made) -> Mapping[str, Any]:
    return {name: value for name, value in (made.result or {}).items() if name not in ("time", "event", "elapsed")}


def tell(made: Made, then_try: str = NEXT) -> None:
    if made.interrupted:
        then = f"`chainrule eval {made.path} TEXT` measures it" if made.finished else "the same command goes on from it"
        say(f"stopped by hand: {made.path} holds what was learned until then; {then}.")
        return
    if made.before:
        say(f"{made.path} is already there, by the same recipe from the same text. --overwrite makes it again.")
    print(f"{made.path}: {summary(result_of(made), 'held-out tokens')}")
    say(then_try.format(run=made.path))


OF_TASKS = ("accuracy", "known_accuracy", "unknown_accuracy", "f1", "bleu", "chrf", "rouge_l")


def _of_task(result: Mapping[str, Any], name: str) -> str:
    """A number with its interval: shares as per cent."""
    low, high = result[f"{name}_interval"]
    scale = 1.0 if name in ("bleu", "chrf", "rouge_l") else 100.0
    return f"{scale * result[name]:.2f} ({scale * low:.2f}–{scale * high:.2f})"


def summary(result: Mapping[str, Any], what: str = "tokens") -> str:
    """The numbers that compare, or why there are none."""
    words = [f"{name.replace('_', ' ')} {_of_task(result, name)}" for name in OF_TASKS if result.get(name) is not None]
    if result.get("bits_per_byte") is not None:
        words.append(f"{result['bits_per_byte']:.4f} bits per byte")
    if result.get("perplexity") is not None:
        words.append(f"perplexity {result['perplexity']:.4f}")
    if result.get("nats_per_pair") is not None:
        words.append(f"{result['nats_per_pair']:.4f} nats per pair, over {result['pairs']:,} held-out pairs")
    for name, said in (("tokens", what), ("examples", "examples"), ("words", "words"), ("texts", "texts")):
        if name in result:
            words.append(f"over {result[name]:,} {said}")
    return "; ".join(part for part in (", ".join(words), result.get("why", "")) if part)
