"""`chainrule sample`, `score` and `eval`: a run answers."""

import math
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from chainrule.commands import word_tests
from chainrule.commands.predict import reading, search_by
from chainrule.commands.train import summary
from chainrule.device import choose_device, multiplies_bfloat16
from chainrule.errors import UserError
from chainrule.inference.evaluate import why_no_number
from chainrule.inference.generate import generate, stream_text
from chainrule.inference.sampling import Sampling
from chainrule.inference.score import stream_bits
from chainrule.model import LanguageModel
from chainrule.run import Run, load
from chainrule.tasks import find_task
from chainrule.text.corpus import read_split
from chainrule.text.tokenizers.tokenizer import Tokenizer


def sample(args: Namespace) -> dict[str, Any]:
    if args.rows < 1:
        raise UserError(f"--rows {args.rows}: ask for 1 or more.")
    sampling = Sampling(
        args.temperature, args.top_k, args.top_p, args.min_p, args.repetition_penalty, tuple(args.stop), args.seed
    )
    run = speaker(args)
    device = choose_device(args.device)
    if run.model.learns_by == "gradient" and device.type == "cuda" and multiplies_bfloat16(device):
        run.model.bfloat16()                               # which writes as well, and twice as fast
    if args.rows == 1 and not args.json:
        text = stream_and_keep(run, args, sampling)
        return {"texts": [text]}
    texts = generate(run.model, run.tokenizer, args.prompt, args.tokens, sampling, args.rows)
    if not args.json:
        for number, text in enumerate(texts, 1):
            print(f"--- {number}\n{args.prompt}{text}")
    return {"run": args.run, "prompt": args.prompt, "texts": texts, "sampling": sampling.as_dict()}


def speaker(args: Namespace) -> Run:
    """The run, if its model can tell what comes next."""
    run = load(args.run, choose_device(args.device))
    task = find_task(run.recipe.task)
    if not task.generates:
        task.refuse(run)
    if not isinstance(run.model, LanguageModel):
        raise UserError(f"{args.run} is a {run.recipe.kind}, which cannot tell what comes next; a language model can.")
    return run


def stream_and_keep(run: Run, args: Namespace, sampling: Sampling) -> str:
    """Writes the text as it comes, and nothing where none can come."""
    pieces = stream_text(run.model, run.tokenizer, args.prompt, args.tokens, sampling)
    written = next(pieces, "")
    print(args.prompt + written, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
        written += piece
    print()
    return written


def score(args: Namespace) -> dict[str, Any]:
    run = speaker(args)
    split = read_split(args.file, reading(run, args), run.tokenizer)
    pairs = stream_bits(run.model, run.tokenizer, split.tokens)
    answer = totals([bits for _, bits in pairs], split.bytes, run.tokenizer)
    if not args.json:
        print_bits(pairs, answer)
    shown = {"shown": [token for token, _ in pairs], "bits": [finite(bits) for _, bits in pairs]}
    return {"run": args.run, **answer, **shown}


def totals(bits: list[float], size: int, tokenizer: Tokenizer) -> dict[str, Any]:
    total = sum(bits)
    why = why_no_number(total * math.log(2) / len(bits), tokenizer)
    return {
        "total_bits": finite(total),
        "tokens": len(bits),
        "bytes": size,
        "bits_per_byte": finite(total / size) if tokenizer.lossless and size else None,
        "perplexity": finite(2 ** (total / len(bits))) if total / len(bits) < 1000 else None,
        **({"why": why} if why else {}),
    }


def print_bits(pairs: list[tuple[str, float]], answer: Mapping[str, Any]) -> None:
    width = min(40, max(len(token) for token, _ in pairs))
    for token, bits in pairs:
        print(f"{token:<{width}} {bits:8.3f}")
    print(f"{'total':<{width}} {sum(bits for _, bits in pairs):8.3f} bits, {summary(answer)}")


def evaluate(args: Namespace) -> dict[str, Any]:
    run = load(args.run, choose_device(args.device))
    if run.model.learns_by == "pairs":
        return word_tests.evaluate(run, args)
    task = find_task(run.recipe.task)
    result = task.measure(run, args.file, reading(run, args), search_by(args))
    if not args.json:
        print(f"{args.run}: {summary(result)}\n{result['signature']}")
    return {"run": args.run, **result}


def finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
