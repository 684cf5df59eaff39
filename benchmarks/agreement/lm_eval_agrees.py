"""lm-eval against `chainrule serve`: the same bits per byte, choices and texts as `chainrule eval`, for four kinds.

    CHAINRULE_DATA=DATA python benchmarks/agreement/lm_eval_agrees.py --out runs/agree [--bytes 60000] [--minutes 1]
                                                                      [--run RUN]

Trains an n-gram, an HMM, an LSTM and a GPT on tinyshakespeare, but for its last tenth, with one BPE tokenizer; then a
server of each is asked by lm-eval (`local-completions`, one request after another and eight at once, and the requests
of `--model gguf`). Held-out documents of at most --length tokens are scored by lm-eval's rolling log-likelihood, each
with the boundary that ends it, and by `chainrule eval` with text.packed=true. A JSON line for each kind.
"""

import argparse
import json
import math
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import chainrule
from chainrule.model import BOUNDARY
from chainrule.run import Run
from chainrule.text.datasets import get
from chainrule.text.sources import unpacked

TEXT = "tinyshakespeare"
BOUNDARY_TEXT = "<|endoftext|>"
KINDS: dict[str, dict[str, Any]] = {
    "ngram": {"model.order": 5},
    "hmm": {"model.states": 64, "train.steps": 10},
    "lstm": {"model.hidden": 256, "model.layers": 1},
    "gpt": {"model.layers": 4, "model.width": 128, "model.heads": 4, "model.context": 256},
}

ROLLING = """task: rolling
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/documents.jsonl}}, cache_dir: {folder}/cache}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{text}}}}{boundary}"
process_results: !function tasks.bits_per_byte
metric_list:
  - metric: bits_per_byte
"""
CHOICE = """task: choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/items.jsonl}}, cache_dir: {folder}/cache}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
target_delimiter: ""
metric_list:
  - metric: acc
"""
WRITING = """task: writing
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/items.jsonl}}, cache_dir: {folder}/cache}}
output_type: generate_until
test_split: test
doc_to_text: "{{{{context}}}}"
doc_to_target: ""
generation_kwargs: {{until: ["\\n"], max_gen_toks: {answer}, temperature: 0}}
metric_list:
  - metric: exact_match
"""
FUNCTIONS = '''def bits_per_byte(doc, results):
    """The boundary that ends a document is predicted, but is no byte of it."""
    return {"bits_per_byte": (results[0], len(doc["text"].encode()))}
'''
ANSWER = 12                   # tokens that are written after each context


@dataclass(frozen=True)
class Item:
    """Which of two continuations follows?"""

    context: str
    choices: tuple[str, str]
    answer: int = 0


def write_tasks(folder: Path, documents: Sequence[str], items: Sequence[Item]) -> Path:
    """Three tasks of lm-eval over local files: bits per byte, multiple choice, writing."""
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / "documents.jsonl", [{"text": text} for text in documents])
    write_lines(folder / "items.jsonl", [asdict(item) for item in items])
    (folder / "tasks.py").write_text(FUNCTIONS)
    for name, task in (("rolling", ROLLING), ("choice", CHOICE), ("writing", WRITING)):
        (folder / f"{name}.yaml").write_text(task.format(folder=folder, boundary=BOUNDARY_TEXT, answer=ANSWER))
    return folder


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def lm_eval_results(address: str, name: str, folder: Path, length: int, **options: Any) -> dict[str, Any]:
    """What lm-eval measures of a server: bits per byte, and the samples of the two other tasks."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    given = {"model": name, "base_url": f"{address}/v1/completions", "max_length": length, **options}
    tasks = TaskManager(include_path=str(folder), include_defaults=False)
    found = simple_evaluate("local-completions", given, tasks=["rolling", "choice", "writing"], task_manager=tasks,
                            bootstrap_iters=0)
    samples = {name: sorted(rows, key=lambda row: row["doc_id"]) for name, rows in found["samples"].items()}
    choices = [[(float(ll), greedy in (True, "True")) for ll, greedy in row["filtered_resps"]]
               for row in samples["choice"]]
    return {
        "bits_per_byte": found["results"]["rolling"]["bits_per_byte,none"],
        "accuracy": found["results"]["choice"]["acc,none"],
        "choices": choices,
        "texts": [row["filtered_resps"][0] for row in samples["writing"]],
    }


def gguf_results(address: str, items: Sequence[Item]) -> list[list[tuple[float, bool]]]:
    """The choices by `--model gguf`, whose requests name no model and hold text, not ids."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.gguf import GGUFLM

    pairs = [(item.context, choice) for item in items for choice in item.choices]
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    found = GGUFLM(base_url=address).loglikelihood(requests, disable_tqdm=True)
    return [found[begin : begin + 2] for begin in range(0, len(found), 2)]


def our_choices(run: Run, items: Sequence[Item]) -> list[list[tuple[float, bool]]]:
    """The same by the model itself, in one step from the boundary: log p; whether each token is the most probable."""

    def scored(context: str, choice: str) -> tuple[float, bool]:
        before, whole = run.tokenizer.encode(context).tolist(), run.tokenizer.encode(context + choice).tolist()
        tokens = torch.tensor([[BOUNDARY, *whole]])
        logits, _ = run.model.step(tokens[:, :-1], run.model.start(1))
        log_p = logits[0].float().log_softmax(-1)[len(before) :]
        chosen = log_p.gather(-1, tokens[0, 1 + len(before) :, None])[:, 0]
        return float(chosen.double().sum()), bool((chosen == log_p.max(-1).values).all())

    with torch.inference_mode():
        return [[scored(item.context, choice) for choice in item.choices] for item in items]


def paired(some: Sequence[Sequence[Any]], others: Sequence[Sequence[Any]]) -> list[tuple[Any, Any]]:
    """The two scores of each choice."""
    return [pair for row, other in zip(some, others, strict=True) for pair in zip(row, other, strict=True)]


def our_texts(run: Run, items: Sequence[Item]) -> list[str]:
    return [run.generate(item.context, ANSWER, temperature=0, stop=("\n",)) for item in items]


def compare(run: Run, folder: Path, items: Sequence[Item], judged: Mapping[str, Any]) -> dict[str, Any]:
    """How far lm-eval's results are from our own."""
    ours = run.evaluate(str(folder / "documents.jsonl"), settings={"text.packed": True})
    choices = our_choices(run, items)
    accuracy = sum(pair[item.answer][0] > pair[1 - item.answer][0] for pair, item in zip(choices, items)) / len(items)
    pairs = paired(judged["choices"], choices)
    texts = our_texts(run, items)
    return {
        "bits_per_byte": judged["bits_per_byte"],
        "chainrule_eval": ours["bits_per_byte"],
        "relative_difference": abs(judged["bits_per_byte"] / ours["bits_per_byte"] - 1),
        "bytes": ours["bytes"],
        "tokens": ours["tokens"],
        "accuracy": judged["accuracy"],
        "our_accuracy": accuracy,
        "choices": len(pairs),
        "largest_difference": max(abs(one[0] - other[0]) for one, other in pairs),
        "greedy_equal": all(one[1] == other[1] for one, other in pairs),
        "texts_equal": sum(one == other for one, other in zip(judged["texts"], texts)),
        "texts": len(texts),
    }


def read_documents(text: str, run: Run, length: int, size: int) -> list[str]:
    """Paragraphs of the text, joined up to `length` tokens, of about `size` bytes in all."""
    documents, room = list[str](), 0
    for paragraph in re.findall(r".+?(?:\n\n|\Z)", text, re.DOTALL):
        tokens = len(run.tokenizer.encode(paragraph))
        if tokens > length:
            continue
        if tokens > room or not documents:
            if sum(len(document.encode()) for document in documents) >= size:
                break
            documents.append("")
            room = length
        documents[-1] += paragraph
        room -= tokens
    return documents


def make_items(documents: Sequence[str], number: int) -> list[Item]:
    """The word that follows in a document, or the one that follows in another."""
    found = list[Item]()
    for one, other in pairwise(documents):
        first, second = (re.fullmatch(r"(.{40,}?)( \w+).*", text, re.DOTALL) for text in (one, other))
        if first and second and first[2] != second[2]:
            found.append(Item(first[1], (first[2], second[2])))
    return found[:number]


def trained(kind: str, args: argparse.Namespace) -> Path:
    settings = {**KINDS[kind], "text.tokenizer": "bpe", "text.vocab": 1024, "train.seed": 1}
    if kind in ("lstm", "gpt"):
        settings["train.minutes"] = args.minutes
    return chainrule.train(TEXT, kind=kind, out=args.out / kind, settings=settings, device="cpu").path


def measure(path: Path, args: argparse.Namespace, text: str, serving: Any) -> None:
    run = chainrule.load(path, "cpu")
    documents = read_documents(text, run, args.length, args.bytes)
    items = make_items(documents, args.items)
    folder = write_tasks((args.out / "tasks" / path.name).resolve(), documents, items)
    for way, options in (("one by one", {}), ("eight at once", {"num_concurrent": 8, "batch_size": 4})):
        with serving([path]) as (address, _):
            began = time.monotonic()
            judged = lm_eval_results(address, path.name, folder, args.length + 3, **options)
            seconds = time.monotonic() - began
            differs = compare(run, folder, items, judged)
            gguf = gguf_results(address, items) if not options else None
        say(run=path.name, kind=run.recipe.kind, requests=way, documents=len(documents), **differs,
            seconds=round(seconds, 1))
        if gguf:
            say(run=path.name, requests="gguf",
                largest_difference=max(abs(one[0] - other[0]) for one, other in paired(gguf, our_choices(run, items))))


def say(**facts: Any) -> None:
    print(json.dumps({name: None if isinstance(fact, float) and math.isnan(fact) else fact
                      for name, fact in facts.items()}), flush=True)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs and the tasks")
    parser.add_argument("--bytes", type=int, default=60_000, help="of held-out text, about")
    parser.add_argument("--length", type=int, default=200, help="tokens of a document at most")
    parser.add_argument("--items", type=int, default=60, help="pairs to choose from, at most")
    parser.add_argument("--minutes", type=float, default=1.0, help="of training, for the LSTM and for the GPT")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--run", type=Path, action="append", default=[], help="a run that exists, instead of the kinds")
    args = parser.parse_args(words)
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from robustness.serve_abuse import serving

    os.environ |= {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    held_out = b"".join(block for source in get(TEXT)["valid"] for block in unpacked(source)).decode()
    for path in args.run or [trained(kind, args) for kind in args.kinds]:
        measure(path, args, held_out, serving)


if __name__ == "__main__":
    main()
