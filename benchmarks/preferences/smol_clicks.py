"""200 clicks on a laptop: SmolLM2-135M-Instruct learns to answer shortly, by preference tuning with LoRA on a CPU.

    python benchmarks/preferences/smol_clicks.py RUN FOLDER --text TEXT [--clicks 200] [--threads 2] [SETTING=VALUE …]

RUN is the imported model (chainrule import FILE.gguf RUN), TEXT held-out English. A judge clicks on the shorter of two
answers; FOLDER gets prompts, clicks and the tuned run. Prints a line of JSON for each of:

    clicks     seconds in which answers were drawn and judged
    training   seconds of `chainrule train --task preference`, and the last numbers of its log
    lengths    tokens of answers to held-out prompts, before and after, with the same random numbers
    text       perplexity of TEXT, and of the answers to held-out prompts that the model gave before
    total      seconds of clicks and training, the fall of the length, the rise of the perplexity, and the bars

Settings are those of `chainrule train`; they are added to those in SETTINGS.
"""

import argparse
import contextlib
import io
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from short_instructions import short_instructions

from chainrule import run
from chainrule.cli import main as chainrule
from chainrule.errors import UserError
from chainrule.inference.sampling import Sampling
from chainrule.model import IGNORE, Batch
from chainrule.prefer.batch_drawing import draw_answers
from chainrule.prefer.drawing import Answer, Policy
from chainrule.preferences.log_probs import answer_sums

SETTINGS = (
    "train.method=dpo", "train.beta=0.1", "train.lora=8", "train.freeze=22", "train.lr=6e-4", "train.epochs=1",
    "train.pairs=8",
)  # fmt: skip
TEMPERATURE = 0.7
LIMIT = 80             # tokens of an answer that is judged
LONG = 192             # and of one to a held-out prompt
SPARE = 1.08           # pairs drawn for each click that is wanted: two answers that were both cut are a tie
WINDOW = 512           # tokens of TEXT that are read at a time
BARS = {"seconds": 600, "fall": 0.3, "fall goal": 0.5, "perplexity goal": 1.02}


def command(*words: str) -> tuple[float, dict[str, Any]]:
    """Seconds of a chainrule command, and what it prints with --json."""
    began, out = time.perf_counter(), io.StringIO()
    with contextlib.redirect_stdout(out):
        code = chainrule([*words, "--json"])
    if code != 0:
        raise UserError(f"chainrule {' '.join(words)} failed.")
    return round(time.perf_counter() - began, 1), json.loads(out.getvalue() or "{}")


def tell(part: str, **facts: Any) -> None:
    print(json.dumps({"part": part, **facts}), flush=True)


def chat(instruction: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": instruction}]


def collect_clicks(base: Path, folder: Path, instructions: list[str], clicks: int) -> tuple[float, Path, Path]:
    """Pairs by the judge, until there are enough: those to learn from, and the few that are left for validation."""
    prompts, pairs = folder / "prompts.jsonl", folder / "pairs.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": chat(each)}) + "\n" for each in instructions), encoding="utf-8")
    total, wanted, lines, drawn = 0.0, clicks + 2, list[str](), 0
    while len(lines) < wanted and drawn < len(instructions):
        drawn = min(len(instructions), drawn + math.ceil(SPARE * (wanted - len(lines))))
        seconds, _ = command("prefer", str(base), str(prompts), "--judge", "shorter", "--out", str(pairs), "--pairs",
                             str(drawn), "--tokens", str(LIMIT), "--temperature", str(TEMPERATURE), "--device", "cpu")
        total, lines = total + seconds, pairs.read_text(encoding="utf-8").splitlines(keepends=True)
    if len(lines) < wanted:
        raise UserError(f"{drawn} prompts gave {len(lines)} clicks, and {wanted} are wanted.")
    train, valid = folder / "clicks.jsonl", folder / "valid.jsonl"
    train.write_text("".join(lines[:clicks]), encoding="utf-8")
    valid.write_text("".join(lines[clicks:]), encoding="utf-8")
    answers = [json.loads(line) for line in lines[:clicks]]
    cut = sum(not answer["rejected_ended"] for answer in answers)
    tell("clicks", seconds=total, clicks=clicks, drawn=drawn, rejected_cut=cut, temperature=TEMPERATURE, limit=LIMIT)
    return total, train, valid


def train(base: Path, out: Path, clicks: Path, valid: Path, settings: list[str]) -> float:
    seconds, result = command("train", str(clicks), "--task", "preference", "--from", str(base), "--valid", str(valid),
                              "--out", str(out), "--device", "cpu", "--overwrite", *settings)
    steps = [record for record in run.read_log(out) if "rewards/margins" in record]
    tell("training", seconds=seconds, settings=settings, last=steps[-1] if steps else None,
         result={name: value for name, value in result.items() if isinstance(value, int | float)})
    return seconds


def answers_of(folder: Path, instructions: list[str]) -> list[Answer]:
    policy = Policy(run.load(folder), Sampling(temperature=TEMPERATURE), LONG)
    try:
        return draw_answers(policy, [(chat(each), 1000 + number, 0) for number, each in enumerate(instructions)])
    finally:
        policy.close()


def length(answers: list[Answer]) -> dict[str, Any]:
    tokens = [answer.tokens for answer in answers]
    return {"mean": float(np.mean(tokens)), "median": float(np.median(tokens)),
            "ended": float(np.mean([answer.ended for answer in answers]))}


@torch.inference_mode()
def text_nats(folder: Path, text: str, tokens: int) -> float:
    """Nats of a token of a text, in windows, each read alone."""
    made = run.load(folder)
    ids = made.tokenizer.encode(text)[: tokens // WINDOW * WINDOW].astype(np.int64).reshape(-1, WINDOW)
    total = 0.0
    for window in torch.from_numpy(ids).split(4):
        batch = Batch(torch.cat([torch.zeros_like(window[:, :1]), window[:, :-1]], 1), window)
        total += float(made.model.eval().loss(batch)[0])
    return total / ids.size


@torch.inference_mode()
def answer_nats(folder: Path, instructions: list[str], answers: list[Answer]) -> float:
    """Nats of a token of answers, without their ends: what is said, and not where it stops."""
    made = run.load(folder)
    total, count = 0.0, 0
    assert made.template is not None
    for instruction, answer in zip(instructions, answers):
        prompt, said = made.template.encode(chat(instruction), True), made.tokenizer.encode(answer.text)
        if len(said):
            row = torch.from_numpy(np.concatenate([[0], prompt, said]).astype(np.int64))[None]
            targets = row[:, 1:].clone()
            targets[:, : len(prompt)] = IGNORE
            total -= float(answer_sums(made.model.eval(), Batch(row[:, :-1], targets))[0])
            count += len(said)
    return total / count


def main() -> None:
    parser = argparse.ArgumentParser(description="SmolLM2 tuned on 200 clicks")
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="held-out English text")
    parser.add_argument("--clicks", type=int, default=200)
    parser.add_argument("--held-out", type=int, default=48, help="prompts")
    parser.add_argument("--text-tokens", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("settings", nargs="*", help="of chainrule train")
    given = parser.parse_intermixed_args()
    torch.set_num_threads(given.threads)
    given.folder.mkdir(parents=True, exist_ok=True)
    every = short_instructions()
    held_out, instructions = every[: given.held_out], every[given.held_out :]
    drawing, clicks, valid = collect_clicks(given.run, given.folder, instructions, given.clicks)
    tuned = given.folder / "tuned"
    training = train(given.run, tuned, clicks, valid, [*SETTINGS, *given.settings])
    before, after = (answers_of(folder, held_out) for folder in (given.run, tuned))
    first, last = length(before), length(after)
    examples = [[instruction, one.text, other.text] for instruction, one, other in zip(held_out, before, after)]
    (given.folder / "answers.json").write_text(json.dumps(examples, indent=1), encoding="utf-8")
    tell("lengths", prompts=len(held_out), limit=LONG, before=first, after=last, example=examples[0])
    text = given.text.read_text(encoding="utf-8", errors="replace")
    nats = {name: {"text": text_nats(folder, text, given.text_tokens), "answers": answer_nats(folder, held_out, before)}
            for name, folder in (("before", given.run), ("after", tuned))}
    rise = {what: math.exp(nats["after"][what] - nats["before"][what]) for what in ("text", "answers")}
    tell("text", **{name: {what: math.exp(value) for what, value in each.items()} for name, each in nats.items()})
    tell("total", seconds=round(drawing + training, 1), drawing=drawing, training=training,
         fall=1 - last["mean"] / first["mean"], perplexity_ratio=rise, bars=BARS, threads=given.threads)


if __name__ == "__main__":
    main()
