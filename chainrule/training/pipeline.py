"""The training pipeline: text → corpus → model → training → evaluation → run directory."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch

from chainrule import run
from chainrule.errors import UserError
from chainrule.files import claim
from chainrule.layers.lora import body_of, merged_state_dict, trainable_tensors
from chainrule.model import Model
from chainrule.progress import short
from chainrule.recipe import Recipe
from chainrule.run import Done
from chainrule.tasks import build_for, find_task, recipe_for
from chainrule.tasks.task import Task
from chainrule.text.corpus import Corpus, MixedSplit, SampledSplit, sample_split
from chainrule.text.mixing import report_mix
from chainrule.text.tokenizers.symbols import SymbolLevel
from chainrule.training.checkpoint import Checkpoints, ShardCheckpoints
from chainrule.training.counting import train_by_counting
from chainrule.training.distributed import ALONE, Ranks, join_ranks
from chainrule.training.finetune import (
    chat_template_of,
    initialise,
    initialise_embeddings,
    log_distance,
    refuse_itself,
    source_of,
    tokenizer_of,
)
from chainrule.training.fsdp import full_state_dict, shard
from chainrule.training.interrupt import Stop, catch_signals
from chainrule.training.log import Log, spent
from chainrule.training.trainer import Diverged, train_by_gradient
from chainrule.training.validation import evaluate_together
from chainrule.training.word_vectors import PairModel, held_out_loss, restore_counts, train_by_pairs

__all__ = ["RunResult", "make_run", "recipe_for", "train_model"]

EXCERPT = 300    # characters of held-out text in a run, with which pages of it open

Observer: TypeAlias = Callable[[Any, Mapping[str, Any]], None]
"""Called with the model, as it is then and in training mode, and with each record of the log as it is written."""

TRAINERS: dict[str, Callable[..., Done]] = {
    "counting": train_by_counting, "gradient": train_by_gradient, "pairs": train_by_pairs,
}


def train_model(
    model: Model,
    corpus: Corpus,
    recipe: Recipe,
    log: Log,
    done: Done | None = None,
    checkpoints: Checkpoints | None = None,
    ranks: Ranks = ALONE,
) -> Done:
    """Trains `model` in place, from where `done` or the checkpoints say it is. Returns how far it came."""
    task = find_task(recipe.task)
    return TRAINERS[model.learns_by](model, corpus, recipe.train, log, done or Done(), checkpoints, ranks, task)


@dataclass(frozen=True)
class RunResult:
    """A run on disk, and its result."""

    path: Path
    result: Mapping[str, Any] | None    # on the validation split; None: interrupted before it was evaluated
    interrupted: bool = False           # by Ctrl-C or SIGTERM
    finished: bool = True               # False: the same call goes on from here
    before: bool = False                # True: the run existed already


def make_run(
    texts: Sequence[str],
    recipe: Recipe,
    out: str | Path,
    *,
    valid: Sequence[str] = (),
    test: Sequence[str] = (),
    overwrite: bool = False,
    device: str = "cpu",
    observe: Observer | None = None,
) -> RunResult:
    """Trains by `recipe` on `texts` and writes the run to `out`. A run is not made twice; an interrupted one goes on.

    Under torchrun all ranks call this; the first tokenizes the texts, and writes. `observe` is called with the
    model and each record of the log.
    """
    out, sharded = Path(out), getattr(recipe.train, "shard", False)
    task = find_task(recipe.task)
    recipe = task.complete(recipe, texts)
    refuse_itself(recipe, out)
    _refuse_without_boundary(recipe, task)
    with join_ranks(device) as ranks, ExitStack() as until_made:
        if sharded and not ranks.distributed:
            raise UserError("train.shard=true shards the weights over several ranks, and here is only one: "
                            "torchrun --nproc-per-node N -m chainrule train … starts N.")
        with ranks.first_rank_first():
            run.refuse_unwritable(out)
            if ranks.first:
                until_made.enter_context(claim(out))
                run.finish_saving(out)
            about = run.look_before_writing(out, recipe, overwrite)
            if ranks.first:
                run.remove_unfinished(out)
            tokenizer = tokenizer_of(recipe, out)
            corpus = task.prepare(recipe, texts, valid, test, tokenizer, chat_template_of(recipe, out, tokenizer))
            splits = {name: _facts(split) for name, split in corpus.splits.items()}
            corpus = sample_validation(corpus, recipe)
            if about is not None and not run.same_text(out, about, splits, overwrite):
                about = None
            if about is None and ranks.first:
                run.forget_checkpoints(out)
            model, log, done = _load_or_build(out, about, recipe, corpus)
        ranks.refuse_different("recipe or text", json.dumps([recipe.as_dict(), splits], default=str))
        if done.finished and (result := log.last("result")):
            return RunResult(out, result, before=True)
        if done.finished and model.learns_by == "pairs":
            restore_counts(model, corpus)
        if not done.finished:
            body = body_of(model)
            initialise_embeddings(body, corpus.tokenizer, recipe.model, log, predicts=body is model)
            initialise(model, recipe, len(corpus.tokenizer), out, log, getattr(corpus, "labels", ()))
        if observe is not None:
            log.observe = partial(observe, model)
        checkpoints = (ShardCheckpoints if sharded else Checkpoints)(out, recipe, splits, ranks)
        return _train(_to_device(model, ranks, sharded), corpus, recipe, log, done, checkpoints)


def sample_validation(corpus: Corpus, recipe: Recipe) -> Corpus:
    """With train.evaluate_tokens, the corpus with a seeded sample in the place of its validation split."""
    most, valid = getattr(recipe.train, "evaluate_tokens", None), corpus.splits.get("valid")
    if most is None or valid is None or not find_task(recipe.task).running_text or len(valid.tokens) - 1 <= most:
        return corpus
    sample, note = sample_split(valid, most, recipe.train.seed, corpus.tokenizer)
    return replace(corpus, splits={**corpus.splits, "valid": sample}, notes=(*corpus.notes, note))


def _refuse_without_boundary(recipe: Recipe, task: Task) -> None:
    """A closed alphabet has no boundary (tokenizers/symbols.py), and some kinds and all other tasks need one."""
    if recipe.text.tokenizer != SymbolLevel.name:
        return
    resets = getattr(task.model_class(recipe.kind), "resets_at_boundary", False)
    if resets or not task.generates:
        why = f"{recipe.kind} starts again at it" if task.generates else f"--task {task.name} ends its texts with it"
        raise UserError(f"text.tokenizer=symbols has no boundary token, and {why}. Use text.tokenizer=characters.")


def _refuse_r_drop(recipe: Recipe, model: Model, trained: Model) -> None:
    """R-Drop compares predictions with different dropout, and has no place for a loss beside that of the targets."""
    if not getattr(recipe.train, "r_drop", 0):
        return
    if trained is not model:
        raise UserError(f"train.r_drop is for models that predict tokens or labels; --task {recipe.task} has a loss of "
                        "its own. Leave it out.")
    if getattr(recipe.head, "auxiliary", 0):
        raise UserError("train.r_drop and head.auxiliary are two losses beside that of the class; set one of them to "
                        "0.")
    if getattr(recipe.model, "experts", 0):
        raise UserError("train.r_drop is not for a mixture of experts, whose router has a loss of its own. Leave it "
                        "out.")
    settings = {**asdict(recipe.model), **({} if recipe.head is None else {"head_dropout": recipe.head.dropout})}
    if not any(value for name, value in settings.items() if name.endswith("dropout") and not isinstance(value, bool)):
        raise UserError("train.r_drop compares two passes with different dropout, and this model has none. "
                        "Add model.dropout=0.1.")


def _to_device(model: Model, ranks: Ranks, sharded: bool) -> Any:
    """On one device, a copy on each of several (data parallel), or a shard of it on each (FSDP)."""
    ranks.broadcast(model.state_dict().values())
    with torch.no_grad():    # torch's recurrent networks read their weights as they move, adapted or not
        return shard(model, ranks.device) if sharded else model.to(ranks.device)


def _train(model: Model, corpus: Corpus, recipe: Recipe, log: Log, done: Done, checkpoints: Checkpoints) -> RunResult:
    """Training, evaluation and saving, as far as they are not done yet."""
    out, ranks, splits = checkpoints.out, checkpoints.ranks, checkpoints.splits
    save, task = partial(_save, checkpoints, model, corpus, log), find_task(recipe.task)
    if not done.finished:
        corpus = task.begin(model, corpus)
        _log_start(log, corpus, recipe, splits, ranks)
        try:
            trained = _objective(model, recipe, ranks)
            done = train_model(trained, corpus, recipe, log, done, checkpoints, ranks)
        except Diverged as error:
            if error.done.rounds:
                save(error.done)
            raise
        if done.finished and ranks.first and not isinstance(checkpoints, ShardCheckpoints):
            log_distance(model, recipe, len(corpus.tokenizer), out, log, getattr(corpus, "labels", ()))
        save(done)                                         # before the evaluation, which may be long, or be killed
    if done.finished and ranks.first:
        run.forget_checkpoints(out)
    result = _measure(model, corpus, recipe, log, ranks, done.rounds) if done.finished else None
    if result and ranks.first:
        run.write_log(out, log.records)
    return RunResult(out, result, interrupted=result is None, finished=done.finished)


def _objective(model: Model, recipe: Recipe, ranks: Ranks) -> Model:
    """What is trained: the model, or what its task puts around it for the time of training."""
    trained = find_task(recipe.task).objective(model, recipe)
    _refuse_r_drop(recipe, model, trained)
    if trained is model:
        return model
    if getattr(recipe.train, "shard", False):
        raise UserError(f"--task {recipe.task} needs the whole model on each rank; leave out train.shard=true.")
    ranks.broadcast(trained.state_dict().values())
    return trained.to(ranks.device)


def _save(checkpoints: Checkpoints, model: Model, corpus: Any, log: Log, done: Done) -> None:
    out, recipe, splits = checkpoints.out, checkpoints.recipe, checkpoints.splits
    adapter = getattr(recipe.train, "lora", None) is not None
    if isinstance(checkpoints, ShardCheckpoints):
        weights = full_state_dict(model, checkpoints.ranks.first)
    else:
        weights = trainable_tensors(model) if adapter else merged_state_dict(model)
    if checkpoints.ranks.first:
        run.save(out, model, corpus.tokenizer, recipe, splits=splits, done=done, log=log.records, weights=weights,
                 labels=getattr(corpus, "labels", ()), adapter=adapter, excerpt=_excerpt(corpus, recipe),
                 source=source_of(recipe, out), chat_template=_template_source(corpus, recipe, out))


def _template_source(corpus: Any, recipe: Recipe, out: Path) -> str | None:
    """The chat template by which the corpus was read; else that of the run it started from, if it continues texts."""
    base = chat_template_of(recipe, out, corpus.tokenizer) if find_task(recipe.task).generates else None
    own: str | None = getattr(corpus, "chat_template", None)
    return own or (None if base is None else base.source)


def _excerpt(corpus: Any, recipe: Recipe) -> str:
    """The beginning of the held-out text, up to the end of a word; of examples the first input, if it is text."""
    task, split = find_task(recipe.task), corpus.splits.get("valid", corpus.splits["train"])
    if task.examples and not task.generates:
        about = split.examples[0].about if split.examples else ""
        words = [about] if isinstance(about, str) else about if isinstance(about, tuple) else []
        return " ".join(word for word in words if isinstance(word, str))[:EXCERPT].strip()
    text: str = corpus.tokenizer.decode(split.tokens[1 : 1 + EXCERPT].tolist())[:EXCERPT].lstrip()
    return text[: text.rfind(" ")] if " " in text else text


def _load_or_build(out: Path, about: Mapping[str, Any] | None, recipe: Recipe, corpus: Any) -> tuple[Any, Log, Done]:
    """The model of an earlier run, its log and how far it is; a new one where there is none to go on from."""
    done = Done(**about["done"]) if about and "done" in about else None
    if done and (done.finished or find_task(recipe.task).model_class(recipe.kind).learns_by == "counting"):
        return run.load(out).model, Log(run.read_log(out)), done
    torch.manual_seed(recipe.train.seed)
    model = build_for(recipe, len(corpus.tokenizer), getattr(corpus, "labels", ()))
    return model, Log(), Done()    # the gradient trainer goes on from its checkpoints


def _log_start(log: Log, corpus: Corpus, recipe: Recipe, splits: Mapping[str, Any], ranks: Ranks) -> None:
    for note in corpus.notes:
        log("note", note, note=note)
    for name, facts in splits.items():
        what = ("example" if find_task(recipe.task).examples else "document") + ("" if facts["documents"] == 1 else "s")
        sizes = (short(facts[size]) for size in ("documents", "bytes", "tokens"))
        line = ", ".join(f"{size} {unit}" for size, unit in zip(sizes, (what, "bytes", "tokens")))
        log("text", f"{name}: {line}", split=name, **facts)
    device = f"{ranks.size} x {ranks.device.type}" if ranks.distributed else str(ranks.device)
    threads = torch.get_num_threads() if ranks.device.type == "cpu" else None
    where = device if threads is None else f"{device} with {threads} thread{'' if threads == 1 else 's'}"
    line = f"{recipe.kind} on {where}, {corpus.tokenizer.unit}, a vocabulary of {len(corpus.tokenizer)}"
    log("begin", line, device=device, threads=threads, ranks=ranks.size, vocab=len(corpus.tokenizer),
        recipe=recipe.as_dict())


def _measure(
    model: Model, corpus: Corpus, recipe: Recipe, log: Log, ranks: Ranks, steps: int
) -> dict[str, Any] | None:
    """The result on the validation split; None if Ctrl-C interrupted it: the model itself is finished."""
    task = find_task(recipe.task)
    result: dict[str, Any] = {"why": "there is no held-out text to evaluate it on; --valid FILE would give one"}
    if model.learns_by == "counting":                      # only the first rank has the model
        if not ranks.first:
            return {}
        ranks = ALONE
    try:
        if "valid" in corpus.splits and model.learns_by == "pairs":
            result = held_out_loss(cast(PairModel, model), corpus.splits["valid"].tokens, corpus.tokenizer)
        elif "valid" in corpus.splits and (measured := task.measure_validation(model, corpus)) is not None:
            result = measured
        elif "valid" in corpus.splits:
            with catch_signals(ranks.distributed) as stop:
                result = evaluate_together(model, corpus, ranks, stop, task).as_dict()
        if isinstance(corpus.splits["train"], MixedSplit):
            with catch_signals(ranks.distributed) as stop:
                result["mix"] = _by_text(model, corpus, recipe, log, ranks, steps, stop)
    except KeyboardInterrupt:
        return None
    if isinstance(sample := corpus.splits.get("valid"), SampledSplit):
        result["sample"] = sample.said
    result["train_seconds"] = round(spent(log.records, len(corpus.splits["train"].tokens))[1], 6)
    log("result", split="valid", **result)
    return result


def _by_text(
    model: Model, corpus: Corpus, recipe: Recipe, log: Log, ranks: Ranks, steps: int, stop: Stop
) -> list[dict[str, Any]]:
    """Of a mix: how much of each text was read, and bits per byte of its validation part."""
    task, train, valid = find_task(recipe.task), corpus.splits["train"], corpus.splits.get("valid")
    order: Any = task.order(model, corpus, recipe.train)
    read = report_mix(cast(MixedSplit, train), getattr(order, "order", order), steps)
    bits = {}
    if isinstance(valid, MixedSplit) and task.running_text:
        for part in valid.parts:
            alone = replace(corpus, splits={"valid": valid.only(part)})
            bits[part.text] = evaluate_together(model, alone, ranks, stop, task).bits_per_byte
    rows = [asdict(part) | {"bits_per_byte": bits.get(part.text)} for part in read]
    for row in rows:
        line = f"{row['text']}: {100 * row['share']:.1f} % of what was read, {row['epochs']:.2f} epochs"
        line += "" if row["bits_per_byte"] is None else f", {row['bits_per_byte']:.4f} bits per byte"
        log("mix", line, **row)
    return rows


def _facts(split: Any) -> dict[str, Any]:
    return {"tokens": len(split.tokens), "bytes": split.bytes, "documents": split.documents, "sha256": split.sha256}
