"""The ladder: every kind learns from the same bytes, one after another, and is measured on the same held-out bytes.

    DIR/comparison.json   what is compared, and the recipe of each kind
    DIR/KIND/             its run, as `chainrule train` makes one

Stopped at any time, the same call goes on where it was: recipes are chosen once, and runs are not made twice.
"""

import json
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from chainrule import __version__, models
from chainrule.compare.budgets import Budget, CorpusSize, DottedSettings, choose_recipe, rounds_in, token_flops
from chainrule.device import fastest_threads
from chainrule.errors import UserError
from chainrule.files import write_text
from chainrule.inference.excerpt import Excerpt, ExcerptBits, excerpt_bits
from chainrule.inference.generate import generate
from chainrule.inference.statistics import Blocks, ScoredSplit, score_split, state_size
from chainrule.progress import say
from chainrule.recipe import Recipe
from chainrule.run import INSTEAD, differences, load, read_log, recipe_of
from chainrule.settings import flatten
from chainrule.tasks import build_for, recipe_for
from chainrule.tasks.lm import counting_batches
from chainrule.text.corpus import Corpus, Split, prepare
from chainrule.text.datasets import DATASETS, SyntheticDataset
from chainrule.text.synthetic import Language
from chainrule.training.log import Point, history, spent
from chainrule.training.pipeline import make_run

COMPARISON = "comparison.json"
UNITS = {"text.tokenizer": "characters"}    # every kind can read them, and with like units perplexities compare too
PROBE = 1 << 20          # tokens by which a round of EM is timed
SAMPLE = 200             # tokens


class Stopped(KeyboardInterrupt):
    """By hand; what was learned until then is kept."""


@dataclass(frozen=True)
class Asked:
    """What shall be compared."""

    texts: tuple[str, ...]
    budget: Budget
    given: Mapping[str, DottedSettings]        # by kind: what is wanted otherwise than chosen
    valid: tuple[str, ...] = ()
    device: str = "cpu"

    def as_dict(self) -> dict[str, Any]:
        """What all kinds have in common."""
        return {"texts": [*self.texts], "valid": [*self.valid], **asdict(self.budget), "device": self.device}

    @property
    def language(self) -> Language | None:
        """The one of known entropy that the text is in, if it is in one."""
        dataset = DATASETS.get(self.texts[0].partition(":")[0])
        alone = len(self.texts) == 1 and not self.valid and not Path(self.texts[0]).exists()
        return dataset.language if alone and isinstance(dataset, SyntheticDataset) else None


@dataclass(frozen=True)
class Rung:
    """A kind that has learned, and what it is worth."""

    kind: str
    recipe: Recipe
    scored: ScoredSplit
    facts: Mapping[str, Any]             # plain values for JSON: sizes, costs, a sample
    points: list[Point]                  # how it came to be
    strip: ExcerptBits                         # some held-out text, and the bits of its tokens


def climb(asked: Asked, out: Path, overwrite: bool = False) -> tuple[Rung, ...]:
    """All kinds, the bottom first. Raises Stopped when asked to; the same call goes on from there."""
    corpora = {kind: corpus_for(kind, asked) for kind in asked.given}
    if len({tuple((name, split.sha256) for name, split in corpus.splits.items()) for corpus in corpora.values()}) > 1:
        raise UserError("kinds are compared on the same bytes, learned from and held out: give text.held_out, "
                        "text.separator and text.errors for all of them, or for none.")
    with fastest_threads() if asked.device == "cpu" and asked.budget.is_small else nullcontext():
        return _climb(asked, corpora, out, overwrite)


def _climb(asked: Asked, corpora: Mapping[str, Corpus], out: Path, overwrite: bool) -> tuple[Rung, ...]:
    recipes = choose_all(asked, corpora, out, overwrite)
    say(f"{', '.join(recipes)} on {' '.join(asked.texts)}: each learns from the same bytes ({asked.device}, "
        f"{asked.budget} at most), and is measured on the same held-out bytes.")
    for kind, recipe in recipes.items():
        say(f"\n{kind}: {models.kind(kind).idea}")
        say(f"chosen: {' '.join(said(recipe)) or 'nothing; there is nothing to choose'}")
        made = make_run(
            asked.texts, recipe, out / kind, valid=asked.valid, overwrite=overwrite, device=asked.device
        )
        if made.interrupted:
            raise Stopped
    say("\nmeasuring each on the same held-out text")
    return tuple(measure(kind, recipes[kind], corpora[kind], out / kind, asked.device) for kind in recipes)


def corpus_for(kind: str, asked: Asked) -> Corpus:
    """The text in the units that the kind reads. Refuses units and texts on which kinds cannot be compared."""
    if "-" in (*asked.texts, *asked.valid):
        raise UserError("compare reads its text once for each kind, and stdin can be read once: save it to a file.")
    settings = recipe_for(kind, {**UNITS, **asked.given[kind]}).text
    corpus = prepare(asked.texts, settings, valid=asked.valid)
    if not corpus.tokenizer.lossless:
        raise UserError(f"{corpus.tokenizer.unit} do not give the text's bytes back, so {kind} would have no bits per "
                        "byte; text.tokenizer=characters, bytes or bpe does.")
    _, split = held_out(corpus)
    Blocks.of(split.bytes)    # which refuses a text too short to judge by
    return corpus


def held_out(corpus: Corpus) -> tuple[str, Split]:
    """The split that nobody has learned from: `test`, on which no best weights were chosen either; else `valid`."""
    for name in ("test", "valid"):
        if name in corpus.splits:
            return name, corpus.splits[name]
    raise UserError("there is no held-out text to compare on; --valid FILE would give one.")


def size_of(corpus: Corpus) -> CorpusSize:
    tokenizer = corpus.tokenizer
    return CorpusSize(tokenizer.unit, len(tokenizer), len(corpus.splits["train"].tokens) - 1)


def choose_all(asked: Asked, corpora: Mapping[str, Corpus], out: Path, overwrite: bool) -> dict[str, Recipe]:
    """The recipes, those that were chosen before as they were chosen."""
    known = {} if overwrite else read_comparison(out, asked)
    recipes = {}
    for kind, given in asked.given.items():
        if kind in known:
            recipes[kind] = recipe_of(out / COMPARISON, {"chainrule": __version__, **known[kind]["recipe"]})
            continue
        chosen = choose_recipe(kind, size_of(corpora[kind]), asked.budget, {**UNITS, **given})
        if asked.budget.by == "minutes" and models.model_class(kind).round_flops(chosen.model) is not None:
            chosen = rounds_by_the_clock(chosen, corpora[kind], asked)
        recipes[kind] = chosen
        known[kind] = {"given": dict(given), "recipe": json.loads(json.dumps(chosen.as_dict()))}
    about = {"chainrule": __version__, "asked": asked.as_dict(), "kinds": known}
    write_text(out / COMPARISON, json.dumps(about, indent=1) + "\n")
    return recipes


def read_comparison(out: Path, asked: Asked) -> dict[str, Any]:
    """The kinds of a comparison begun at `out`; refuses what is another one, or none at all."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; a comparison is written to a folder. Choose another folder.")
    if not out.exists() or not any(out.iterdir()):
        return {}
    try:
        about = json.loads((out / COMPARISON).read_text(encoding="utf-8"))
        there, kinds = about["asked"], dict(about["kinds"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{out} holds files that are no comparison. Choose another folder.") from None
    differing = differences(there, asked.as_dict())
    for kind in kinds.keys() & asked.given.keys():
        differing += differences({kind: kinds[kind]["given"]}, {kind: asked.given[kind]})
    if differing:
        raise UserError(f"{out} holds another comparison: {'; '.join(differing)}. {INSTEAD}")
    return kinds


def rounds_by_the_clock(recipe: Recipe, corpus: Corpus, asked: Asked) -> Recipe:
    """As many rounds of EM as fit into the time, by how long a piece of the text takes."""
    tokens, train = corpus.splits["train"].tokens, replace(recipe.train, tokens=PROBE)
    model = build_for(recipe, len(corpus.tokenizer), ()).to(asked.device)
    model.forget(torch.Generator().manual_seed(recipe.train.seed))
    batch = next(iter(counting_batches(model, tokens, train))).to(asked.device)
    seconds = min(_seconds(model, batch) for _ in range(2))
    each = seconds * (len(tokens) - 1) / int(batch.loss_mask.sum())
    return replace(recipe, train=replace(recipe.train, steps=rounds_in(asked.budget.seconds, each)))


def _seconds(model: Any, batch: Any) -> float:
    began = time.perf_counter()
    float(model.collect(batch).nats)    # which waits for the device
    return time.perf_counter() - began


def said(recipe: Recipe) -> list[str]:
    """The words that make this recipe from the kind's own defaults."""
    usual = flatten(recipe_for(recipe.kind).as_dict())
    chosen = flatten(recipe.as_dict())
    return [f"{name}={value}" for name, value in chosen.items() if value != usual.get(name) and value is not None]


def measure(kind: str, recipe: Recipe, corpus: Corpus, path: Path, device: str) -> Rung:
    """A run on the held-out text, token by token; what it cost; and how it writes."""
    run, (_, split) = load(path, device), held_out(corpus)
    scored = score_split(run.model, run.tokenizer, split)
    excerpt = Excerpt.of(run.tokenizer.decode(split.tokens))
    (sample,) = generate(run.model, run.tokenizer, excerpt.prompt, SAMPLE)
    size, growth = state_size(run.model, split.tokens)
    log, targets = read_log(path), len(corpus.splits["train"].tokens) - 1
    facts = {
        "run": str(path),
        "idea": models.kind(kind).idea,
        "settings": said(recipe),
        "parameters": scored.result.parameters,
        **_costs(log, targets, token_flops(recipe, size_of(corpus))),
        "read_tokens_per_second": _rate(scored.result.tokens, scored.result.seconds),
        "state_bytes": size,
        "state_bytes_per_token": growth,
        "prompt": excerpt.prompt,
        "sample": sample,
    }
    shown = excerpt_bits(excerpt, scored, run.tokenizer, split.tokens[1:])
    return Rung(kind, recipe, scored, facts, history(log, targets), shown)


def _costs(log: list[dict[str, Any]], targets: int, flops: float | None) -> dict[str, Any]:
    tokens, seconds = spent(log, targets)
    return {
        "train_tokens": tokens,
        "train_seconds": round(seconds, 3),
        "tokens_per_second": _rate(tokens, seconds),
        "flops_per_token": flops,
        "flops": None if flops is None else flops * tokens,
    }


def _rate(amount: float, seconds: float) -> int:
    return round(amount / max(seconds, 1e-9))
