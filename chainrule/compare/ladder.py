"""The ladder: every kind is trained on the same bytes, one after another, and evaluated on the same held-out bytes.

    DIR/comparison.json   what is compared, and the recipe of each kind
    DIR/KIND/             its run, as `chainrule train` makes one

An interrupted ladder is continued by the same call: recipes are chosen once, and finished runs are kept.
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
from chainrule.defaults.budgets import Budget, CorpusSize, DottedSettings, recipe_for_budget, rounds_in, token_flops
from chainrule.defaults.clock import Clock, measure_step
from chainrule.device import fastest_threads
from chainrule.errors import UserError
from chainrule.files import write_text
from chainrule.inference.generate import generate
from chainrule.inference.statistics import Blocks, ScoredSplit, score_split, state_size
from chainrule.inference.text_score import Excerpt, ExcerptBits, excerpt_bits
from chainrule.model import Batch, CountingModel
from chainrule.progress import say
from chainrule.recipe import Recipe
from chainrule.run import COMPARISON, INSTEAD, UNFINISHED, differences, load, read_log, recipe_of
from chainrule.settings import flatten
from chainrule.tasks import build_for, recipe_for
from chainrule.tasks.lm import counting_batches
from chainrule.text.corpus import Corpus, Split, prepare
from chainrule.text.datasets import DATASETS, SyntheticDataset
from chainrule.text.synthetic import Language
from chainrule.training.log import Point, history, spent
from chainrule.training.pipeline import make_run

UNITS = {"text.tokenizer": "characters"}    # every kind can read them, and then perplexities can be compared too
PROBE = 1 << 20          # tokens on which a round of EM is timed
SAMPLE = 200             # tokens


class Stopped(KeyboardInterrupt):
    """Interrupted by the user; what was learned until then is saved."""


@dataclass(frozen=True)
class LadderPlan:
    """What is compared: texts, kinds and the budget of each."""

    texts: tuple[str, ...]
    budget: Budget
    given: Mapping[str, DottedSettings]        # by kind: settings of the user
    valid: tuple[str, ...] = ()
    device: str = "cpu"

    def as_dict(self) -> dict[str, Any]:
        """What is the same for all kinds."""
        return {"texts": [*self.texts], "valid": [*self.valid], **asdict(self.budget), "device": self.device}

    @property
    def language(self) -> Language | None:
        """The synthetic language of known entropy that the text is from, if it is."""
        dataset = DATASETS.get(self.texts[0].partition(":")[0])
        alone = len(self.texts) == 1 and not self.valid and not Path(self.texts[0]).exists()
        return dataset.language if alone and isinstance(dataset, SyntheticDataset) else None


@dataclass(frozen=True)
class Rung:
    """A trained kind, and its results."""

    kind: str
    recipe: Recipe
    scored: ScoredSplit
    facts: Mapping[str, Any]             # plain values for JSON: sizes, costs, a sample
    points: list[Point]                  # the training curve
    strip: ExcerptBits                         # some held-out text, and the bits of its tokens


def climb(plan: LadderPlan, out: Path, overwrite: bool = False) -> tuple[Rung, ...]:
    """All kinds, in order. Raises Stopped when interrupted; the same call continues from there."""
    corpora = {kind: corpus_for(kind, plan) for kind in plan.given}
    if len({tuple((name, split.sha256) for name, split in corpus.splits.items()) for corpus in corpora.values()}) > 1:
        raise UserError("kinds are compared on the same bytes, learned from and held out: give text.held_out, "
                        "text.separator and text.errors for all of them, or for none.")
    with fastest_threads() if plan.device == "cpu" and plan.budget.is_small else nullcontext():
        return _climb(plan, corpora, out, overwrite)


def _climb(plan: LadderPlan, corpora: Mapping[str, Corpus], out: Path, overwrite: bool) -> tuple[Rung, ...]:
    recipes = choose_all(plan, corpora, out, overwrite)
    say(f"{', '.join(recipes)} on {' '.join(plan.texts)}: each is trained on the same bytes ({plan.device}, "
        f"at most {plan.budget}) and evaluated on the same held-out bytes.")
    for kind, recipe in recipes.items():
        say(f"\n{kind}: {models.kind(kind).idea}")
        say(f"chosen: {' '.join(chosen_settings(recipe)) or 'the defaults'}")
        made = make_run(
            plan.texts, recipe, out / kind, valid=plan.valid, overwrite=overwrite, device=plan.device
        )
        if made.interrupted:
            raise Stopped
    say("\nevaluating each on the same held-out text")
    return tuple(measure_run(kind, recipes[kind], corpora[kind], out / kind, plan.device) for kind in recipes)


def corpus_for(kind: str, plan: LadderPlan) -> Corpus:
    """The text in the tokens of the kind. Refuses tokenizers and texts with which kinds cannot be compared."""
    if "-" in (*plan.texts, *plan.valid):
        raise UserError("compare reads its text once for each kind, and stdin can be read once: save it to a file.")
    settings = recipe_for(kind, {**UNITS, **plan.given[kind]}).text
    corpus = prepare(plan.texts, settings, valid=plan.valid)
    if not corpus.tokenizer.lossless:
        raise UserError(f"{corpus.tokenizer.unit} do not give the text's bytes back, so {kind} would have no bits per "
                        "byte; text.tokenizer=characters, bytes or bpe does.")
    _, split = held_out(corpus)
    Blocks.of(split.bytes)    # which refuses a text that is too short
    return corpus


def held_out(corpus: Corpus) -> tuple[str, Split]:
    """The held-out split: `test`, which early stopping has not used either; else `valid`."""
    for name in ("test", "valid"):
        if name in corpus.splits:
            return name, corpus.splits[name]
    raise UserError("there is no held-out text to compare on; --valid FILE would give one.")


def choose_all(plan: LadderPlan, corpora: Mapping[str, Corpus], out: Path, overwrite: bool) -> dict[str, Recipe]:
    """The recipes; those of an interrupted ladder as they were chosen then."""
    known = {} if overwrite else read_comparison(out, plan)
    recipes = {}
    for kind, given in plan.given.items():
        if kind in known:
            recipes[kind] = recipe_of(out / COMPARISON, {"chainrule": __version__, **known[kind]["recipe"]})
            continue
        chosen = recipe_for_budget(kind, CorpusSize.of(corpora[kind]), plan.budget, {**UNITS, **given})
        if plan.budget.by == "minutes":
            chosen = by_the_clock(chosen, corpora[kind], plan)
        recipes[kind] = chosen
        known[kind] = {"given": dict(given), "recipe": json.loads(json.dumps(chosen.as_dict()))}
    about = {"chainrule": __version__, "plan": plan.as_dict(), "kinds": known}
    write_text(out / COMPARISON, json.dumps(about, indent=1) + "\n")
    return recipes


def read_comparison(out: Path, plan: LadderPlan) -> dict[str, Any]:
    """The kinds of a comparison that was begun at `out`; refuses another comparison, or other files."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; a comparison is written to a folder. Choose another folder.")
    if not out.exists() or all(UNFINISHED.fullmatch(file.name) for file in out.iterdir()):
        return {}
    try:
        about = json.loads((out / COMPARISON).read_text(encoding="utf-8"))
        there, kinds = about["plan"], dict(about["kinds"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{out} holds files that are no comparison. Choose another folder.") from None
    differing = differences(there, plan.as_dict())
    for kind in kinds.keys() & plan.given.keys():
        differing += differences({kind: kinds[kind]["given"]}, {kind: plan.given[kind]})
    if differing:
        raise UserError(f"{out} holds another comparison: {'; '.join(differing)}. {INSTEAD}")
    return kinds


def by_the_clock(recipe: Recipe, corpus: Corpus, plan: LadderPlan) -> Recipe:
    """The recipe for what this machine can do in the time."""
    cls = models.model_class(recipe.kind)
    if cls.learns_by == "gradient":
        return steps_by_the_clock(recipe, corpus, plan) if plan.device == "cpu" else recipe
    return recipe if cls.round_flops(recipe.model) is None else rounds_by_the_clock(recipe, corpus, plan)


def steps_by_the_clock(recipe: Recipe, corpus: Corpus, plan: LadderPlan) -> Recipe:
    """Learning rate and dropout for as many steps of a network as fit into the time, by the speed of a few."""
    size = CorpusSize.of(corpus)
    speed = measure_step(recipe, corpus, plan.budget.seconds)
    clock = Clock(plan.budget.seconds, speed, token_flops(recipe, size) or 1.0)
    given = {**UNITS, **plan.given[recipe.kind]}
    return recipe_for_budget(recipe.kind, size, plan.budget, given, tokens=clock.tokens)


def rounds_by_the_clock(recipe: Recipe, corpus: Corpus, plan: LadderPlan) -> Recipe:
    """As many rounds of EM as fit into the time, measured on a part of the text."""
    tokens, train = corpus.splits["train"].tokens, replace(recipe.train, tokens=PROBE)
    model = build_for(recipe, len(corpus.tokenizer), ()).to(plan.device)
    model.forget(torch.Generator().manual_seed(recipe.train.seed))
    batch = next(iter(counting_batches(model, tokens, train))).to(plan.device)
    seconds = min(_seconds(model, batch) for _ in range(2))
    each = seconds * (len(tokens) - 1) / int(batch.loss_mask.sum())
    return replace(recipe, train=replace(recipe.train, steps=rounds_in(plan.budget.seconds, each)))


def _seconds(model: CountingModel, batch: Batch) -> float:
    began = time.perf_counter()
    float(model.collect(batch).nats)    # which waits for the device
    return time.perf_counter() - began


def chosen_settings(recipe: Recipe) -> list[str]:
    """The settings in which this recipe differs from the kind's defaults, as words of the command line."""
    usual = flatten(recipe_for(recipe.kind).as_dict())
    chosen = flatten(recipe.as_dict())
    return [f"{name}={value}" for name, value in chosen.items() if value != usual.get(name) and value is not None]


def measure_run(kind: str, recipe: Recipe, corpus: Corpus, path: Path, device: str) -> Rung:
    """The results of a run: bits of the held-out text token by token, costs, and a sample."""
    run, (_, split) = load(path, device), held_out(corpus)
    scored = score_split(run.model, run.tokenizer, split)
    excerpt = Excerpt.of(run.tokenizer.decode(split.tokens))
    (sample,) = generate(run.model, run.tokenizer, excerpt.prompt, SAMPLE, past_end=run.tokenizer.lines)
    size, growth = state_size(run.model, split.tokens)
    log, targets = read_log(path), len(corpus.splits["train"].tokens) - 1
    facts = {
        "run": str(path),
        "idea": models.kind(kind).idea,
        "settings": chosen_settings(recipe),
        "parameters": scored.result.parameters,
        **_costs(log, targets, token_flops(recipe, CorpusSize.of(corpus))),
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
        "train_seconds": round(seconds, 6),
        "tokens_per_second": _rate(tokens, seconds),
        "flops_per_token": flops,
        "flops": None if flops is None else flops * tokens,
    }


def _rate(amount: float, seconds: float) -> int:
    return round(amount / max(seconds, 1e-9))
