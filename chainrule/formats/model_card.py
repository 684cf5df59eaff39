"""The model card of an exported folder: README.md with a YAML head, as the Hugging Face Hub reads it.

It says what the model is, how it is opened, what it was trained on, its settings, and its results with their
signatures: how each was measured. It names no path of the machine that it was written on.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from chainrule.progress import short
from chainrule.run import Run

OPENED_BY = {    # the task of a run: the pipeline, and the class that opens it
    "lm": ("text-generation", "AutoModelForCausalLM"),
    "mask": ("fill-mask", "AutoModelForMaskedLM"),
    "classify": ("text-classification", "AutoModelForSequenceClassification"),
    "tag": ("token-classification", "AutoModelForTokenClassification"),
}
READS = {
    "lm": "Every text begins with the token {boundary}, which the tokenizer adds; the same token ends it.",
    "mask": "The tokenizer puts {boundary} before and after a text.",
    "classify": "The tokenizer puts {boundary} before a text, <|extract|> after it, <|delimiter|> between two texts.",
    "tag": "The tokenizer puts {boundary} before a sentence. The tag of a word is that of its last token.",
}
NOT_METRICS = ("seconds", "train_seconds", "parameters", "signature", "tokens", "bytes", "words", "examples")


@dataclass(frozen=True)
class Facts:
    """What the card says that the run does not."""

    architecture: str        # the class in transformers
    parameters: int


def write_card(run: Run, facts: Facts, folder: Path, name: str) -> None:
    """README.md in `folder`; `name`: that of the model."""
    parts = [_head(run, facts, name), _what(run, facts, name), _opening(run, facts, name), _training(run),
             _settings(run), _results(run)]
    (folder / "README.md").write_text("\n".join(part for part in parts if part), encoding="utf-8")


def pipeline(run: Run, facts: Facts) -> str:
    return "feature-extraction" if facts.architecture == "BertModel" else OPENED_BY[_task(run)][0]


def _task(run: Run) -> str:
    """Every model that continues texts is opened as a language model."""
    return "lm" if run.task.generates else run.recipe.task


def metrics(run: Run) -> dict[str, float]:
    """Of the validation split at the end of training."""
    return {name: value for name, value in run.result.items()
            if name not in NOT_METRICS and isinstance(value, int | float) and not isinstance(value, bool)}


def _head(run: Run, facts: Facts, name: str) -> str:
    source: Mapping[str, Any] = run.about.get("source", {})
    head: dict[str, Any] = {"license": source.get("licence"), "language": source.get("language")}
    head |= {"library_name": "transformers", "pipeline_tag": pipeline(run, facts)}
    head |= {"tags": ["chainrule", run.recipe.kind], "base_model": source.get("folder")}
    if found := metrics(run):
        measured = [{"type": metric, "value": value} for metric, value in found.items()]
        dataset = {"name": "held-out text", "type": "text", "split": "validation"}
        result = {"task": {"type": pipeline(run, facts)}, "dataset": dataset, "metrics": measured}
        head |= {"metrics": list(found), "model-index": [{"name": name, "results": [result]}]}
    lines = (f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items() if value)
    return "\n".join(["---", *lines, "---\n"])    # JSON is YAML


def _what(run: Run, facts: Facts, name: str) -> str:
    source: Mapping[str, Any] = run.about.get("source", {})
    unit = "an imported tokenizer" if run.tokenizer.unit == "pretrained" else run.tokenizer.unit
    said = (f"# {name}\n\nA model of the kind `{run.recipe.kind}` of chainrule {run.about['chainrule']}, for the task "
            f"`{run.recipe.task}`, as `{facts.architecture}`: {short(facts.parameters)} parameters, a vocabulary of "
            f"{len(run.tokenizer):,} ({unit}).\n")
    if source.get("folder"):
        said += f"\nIts first weights are those of {source['folder']} ({source.get('architecture')}).\n"
    labels = f"\nLabels: {', '.join(run.labels)}.\n" if run.labels else ""
    return said + labels


def _opening(run: Run, facts: Facts, name: str) -> str:
    opener = "AutoModel" if facts.architecture == "BertModel" else OPENED_BY[_task(run)][1]
    boundary = json.dumps(run.tokenizer.boundary_in_file)
    return (f"## How to open it\n\n```python\nfrom transformers import {opener}, AutoTokenizer\n\n"
            f'model = {opener}.from_pretrained("{name}")\ntokenizer = AutoTokenizer.from_pretrained("{name}")\n```\n\n'
            f"{READS[_task(run)].format(boundary=boundary)}\n")


def _training(run: Run) -> str:
    splits = run.about.get("splits") or {}
    rows = [(name, *(f"{facts.get(size, 0):,}" for size in ("documents", "bytes", "tokens")),
             f"`{facts.get('sha256', '')[:12]}`") for name, facts in splits.items()]
    return _table("Text", ("split", "documents", "bytes", "tokens", "sha256"), rows)


def _settings(run: Run) -> str:
    """Those that differ from their defaults."""
    recipe, rows = run.recipe, []
    for part, settings in (("model", recipe.model), ("train", recipe.train), ("head", recipe.head)):
        for one in fields(settings) if settings is not None else ():
            value = getattr(settings, one.name)
            if value != one.default and "vectors" not in one.name:
                rows.append((f"`{part}.{one.name}`", f"`{json.dumps(value)}`"))
    return _table("Settings", ("setting", "value"), rows)


def _results(run: Run) -> str:
    """On the validation split, with the signature."""
    rows = [(f"`{name}`", f"{value:.6g}") for name, value in metrics(run).items()]
    table = _table("Results", ("metric", "value"), rows)
    signature = run.result.get("signature")
    return table + (f"\nSignature: `{signature}`\n" if table and signature else "")


def _table(title: str, names: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    listed = [f"| {' | '.join(row)} |" for row in rows]
    head = [f"## {title}\n", f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    return "\n".join([*head, *listed, ""]) if listed else ""
