"""The whole of training, as the pipeline it is: text → corpus → model → fit → evaluate → run directory."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from chainrule import models, run
from chainrule.device import choose_device
from chainrule.models import build, model_class
from chainrule.progress import short
from chainrule.recipe import Recipe, make_recipe
from chainrule.run import Done
from chainrule.text.corpus import Corpus, prepare
from chainrule.train.checkpoint import Checkpoints
from chainrule.train.fit import fit
from chainrule.train.gradient import Diverged
from chainrule.train.log import Log
from chainrule.use.evaluate import evaluate


def recipe_for(kind: str, settings: Mapping[str, Any] = {}, task: str = "lm") -> Recipe:
    """A kind's recipe, where dotted settings differ from its defaults."""
    return make_recipe(kind, model_class(kind), settings, models.kind(kind).preset, task)


@dataclass(frozen=True)
class Made:
    """A run on disk, and what is known of it."""

    path: Path
    result: Mapping[str, Any] | None    # on the whole validation text; None: stopped by hand before it was measured
    interrupted: bool = False           # stopped by hand
    finished: bool = True               # False: the same call goes on from here
    before: bool = False                # True: the run was there already


def make_run(
    texts: Sequence[str],
    recipe: Recipe,
    out: str | Path,
    *,
    valid: Sequence[str] = (),
    test: Sequence[str] = (),
    overwrite: bool = False,
    device: str = "cpu",
) -> Made:
    """Train by `recipe` on `texts` and write the run to `out`. A run is not made twice; one stopped by hand goes on."""
    out, place = Path(out), choose_device(device)
    about = run.look_before_writing(out, recipe, overwrite)
    corpus = prepare(texts, recipe.text, valid=valid, test=test)
    splits = {name: _facts(split) for name, split in corpus.splits.items()}
    if about is not None and not run.same_text(out, about, splits, overwrite):
        about = None
    if about is None:
        run.forget_checkpoints(out)
    model, log, done = _what_is_there(out, about, recipe, len(corpus.tokenizer))
    if done.finished and (result := log.last("result")):
        return Made(out, result, before=True)
    began, model = time.monotonic(), model.to(place)
    keep = partial(run.save, out, model, corpus.tokenizer, recipe, splits=splits)
    if not done.finished:
        _begin(log, corpus, recipe, splits, str(place))
        try:
            done = fit(model, corpus, recipe, log, done, Checkpoints(out, recipe, splits))
        except Diverged as error:
            if error.done.rounds:
                keep(done=error.done, log=log.records)
            raise
    result = _measure(model, corpus, log, time.monotonic() - began) if done.finished else None
    keep(done=done, log=log.records)
    if done.finished:
        run.forget_checkpoints(out)
    return Made(out, result, interrupted=result is None, finished=done.finished)


def _what_is_there(out: Path, about: Mapping[str, Any] | None, recipe: Recipe, vocab: int) -> tuple[Any, Log, Done]:
    """The model of an earlier run, how it came to be and how far it is; a new one where there is none to go on from."""
    done = Done(**about["done"]) if about and "done" in about else None
    if done and (done.finished or model_class(recipe.kind).learns_by == "counting"):
        return run.load(out).model, Log(run.read_log(out)), done
    torch.manual_seed(recipe.train.seed)
    return build(recipe.kind, recipe.model, vocab), Log(), Done()    # descent goes on from its checkpoints


def _begin(log: Log, corpus: Corpus, recipe: Recipe, splits: Mapping[str, Any], device: str) -> None:
    for note in corpus.notes:
        log("note", note, note=note)
    for name, facts in splits.items():
        line = f"{name}: " + ", ".join(f"{short(facts[what])} {what}" for what in ("documents", "bytes", "tokens"))
        log("text", line, split=name, **facts)
    line = f"{recipe.kind} on {device}, {corpus.tokenizer.unit}, a vocabulary of {len(corpus.tokenizer)}"
    log("begin", line, device=device, vocab=len(corpus.tokenizer), recipe=recipe.as_dict())


def _measure(model: Any, corpus: Corpus, log: Log, seconds: float) -> dict[str, Any] | None:
    """The result on the whole validation text; None where Ctrl-C would not wait for it: the model itself is done."""
    result: dict[str, Any] = {"why": "there is no held-out text to measure it on; --valid FILE would give one"}
    try:
        if "valid" in corpus.splits:
            result = evaluate(model, corpus.tokenizer, corpus.splits["valid"]).as_dict()
    except KeyboardInterrupt:
        return None
    result["train_seconds"] = round(seconds, 3)
    log("result", split="valid", **result)
    return result


def _facts(split: Any) -> dict[str, Any]:
    return {"tokens": len(split.tokens), "bytes": split.bytes, "documents": split.documents, "sha256": split.sha256}
