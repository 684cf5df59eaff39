"""`chainrule sample`, `score`, `eval` and `predict`: commands that query a run."""

import math
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from chainrule.commands.evaluation.by_position import by_position
from chainrule.commands.evaluation.exams import exam, is_exam
from chainrule.commands.evaluation.few_shot import few_shot, refuse_without_shots
from chainrule.commands.json_output import Streamed
from chainrule.commands.train import metrics_line
from chainrule.device import choose_device, multiplies_bfloat16, tf32_products
from chainrule.errors import UserError
from chainrule.inference.fill_in import ALTERNATIVES, keep_top
from chainrule.inference.mbr import choose_search
from chainrule.inference.sampling import Sampling
from chainrule.inference.text_score import StreamScore, finite
from chainrule.run import Run, SamplingOptions, load
from chainrule.tasks.task import Search
from chainrule.text.corpus import read_split


def sample_command(args: Namespace) -> dict[str, Any]:
    if args.rows < 1:
        raise UserError(f"--rows {args.rows}: ask for 1 or more.")
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
    options: Any = {name: getattr(args, name) for name in names} | {"stop": tuple(args.stop)}
    sampling, device, (run, others) = Sampling(**options), choose_device(args.device), load_run(args)
    for name in others:
        raise UserError(f"{name} cannot be set here: sampling reads no text. Leave it out.")
    set_precision(run, args.precision, device)
    if args.rows == 1 and not args.json:
        return {"texts": [print_stream(run, args.prompt, args.tokens, args.past_end, options)]}
    texts = run.generate(args.prompt, args.tokens, rows=args.rows, past_end=args.past_end, **options)
    if not args.json:
        for number, text in enumerate(texts, 1):
            print(f"--- {number}\n{args.prompt}{text}")
    return {"run": args.run, "prompt": args.prompt, "texts": texts, "sampling": sampling.as_dict()}


def set_precision(run: Run, precision: str, device: torch.device) -> bool:
    """The weights of a network in the dtype that was asked for; auto: bfloat16 is as good for sampling, and faster on
    a GPU. Returns whether they are no longer in float32."""
    if precision == "auto":
        fast = run.model.learns_by == "gradient" and device.type == "cuda" and multiplies_bfloat16(device)
        precision = "bfloat16" if fast else "float32"
    if precision == "float32":
        return False
    if run.model.learns_by != "gradient":
        raise UserError(f"--precision {precision} is for neural networks; {run.path} is a run of {run.recipe.kind}. "
                        "Leave it out.")
    if precision == "bfloat16":
        run.model.bfloat16()
        return True
    from chainrule.models.gpt import Decoder

    if not isinstance(run.model, Decoder):
        raise UserError(f"--precision int8 is for gpt; {run.path} is a run of {run.recipe.kind}. Leave it out.")
    if device.type != "cpu":
        raise UserError("--precision int8 is for a CPU. Leave it out, or add --device cpu.")
    run.model.quantise()
    return True


def load_run(args: Namespace) -> tuple[Run, dict[str, str]]:
    """The run, its model with the `model.*` settings given, and the other settings."""
    model = {name: value for name, value in args.settings.items() if name.startswith("model.")}
    others = {name: value for name, value in args.settings.items() if name not in model}
    run = load(args.run, args.device, model)
    ensemble = [read_weight(word) for word in getattr(args, "others", ())]
    if not ensemble:
        return run, others
    runs = [load(path, args.device) for path, _ in ensemble]
    return run.averaged_with(*runs, weights=[weight for _, weight in ensemble]), others


def read_weight(word: str) -> tuple[str, float]:
    """RUN or RUN:WEIGHT, of --with. A run whose own name has a colon is taken as it is."""
    path, colon, number = word.rpartition(":")
    if not colon or Path(word).exists():
        return word, 1.0
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise UserError(f"--with {word}: the weight {number or 'after the colon'} must be a number that is "
                        f"more than 0, as in --with {path}:0.5.")
    return path, weight


def print_stream(run: Run, prompt: str, tokens: int, past_end: bool, options: SamplingOptions) -> str:
    """Prints the text while it is sampled; the prompt too, once there is a first piece and no error."""
    pieces = run.stream(prompt, tokens, past_end=past_end, **options)
    written = next(pieces, "")
    print(prompt + written, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
        written += piece
    print()
    return written


def score_command(args: Namespace) -> dict[str, Any] | Streamed:
    run, settings = load_run(args)
    model = run.language_model
    split = read_split(args.file, run.reading(settings), run.tokenizer)
    scored = StreamScore(model, run.tokenizer, split.tokens, split.bytes, split.packed)
    if args.json:
        return Streamed(_score_pairs(args.run, scored))
    print_bits(scored)
    return {}


def _score_pairs(run: str, scored: StreamScore) -> Iterator[tuple[str, Any]]:
    """The answer in the order in which it is computed: the totals are known last."""
    yield "run", run
    yield "shown", scored.shown()
    yield "bits", map(finite, scored.bits())
    yield from scored.totals.as_dict().items()


def print_bits(scored: StreamScore) -> None:
    width = min(40, max(len(name) for names in scored.shown() for name in names))
    shown = (name for names in scored.shown() for name in names)
    for bits in scored.bits():
        for number in bits:
            print(f"{next(shown):<{width}} {number:8.3f}")
    totals = scored.totals
    print(f"{'total':<{width}} {totals.bits:8.3f} bits, {metrics_line(totals.as_dict())}")


def eval_command(args: Namespace) -> dict[str, Any]:
    with tf32_products(args.precision == "auto"):
        return _evaluate(args)


def _evaluate(args: Namespace) -> dict[str, Any]:
    if args.by_position:
        if args.others:
            raise UserError("--with averages the answers to examples of a task; --by-position names its runs "
                            "before the text. Leave it out.")
        return by_position(args)
    if args.shots is not None:
        return few_shot(*load_run(args), args)
    if args.plot or args.positions:
        raise UserError(f"{'--plot' if args.plot else '--positions'} is for eval --by-position; give both.")
    if args.reward is not None:
        return policy(*load_run(args), args)
    refuse_without_shots(args)
    for name in ("reference", "answer_tokens"):
        if getattr(args, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} is for answers to prompts: give --reward R too.")
    run, settings = load_run(args)
    if is_exam(args.file):
        return exam(run, settings, args)
    result = run.evaluate(args.file, settings=settings, search=search_by(args))
    if not args.json and run.model.learns_by == "pairs":
        print_words(args.run, result)
    elif not args.json:
        print(f"{args.run}: {metrics_line(result)}\n{result['signature']}")
    return {"run": args.run, **result}


def policy(run: Run, settings: dict[str, str], args: Namespace) -> dict[str, Any]:
    """Reward and KL of a language model's answers."""
    from chainrule.preferences.policy_evaluation import evaluate_policy

    for name in settings:
        raise UserError(f"{name} cannot be set here: prompts are read as they are. Leave it out.")
    tokens = 64 if args.answer_tokens is None else args.answer_tokens
    result = evaluate_policy(run, args.file, args.reward, reference=args.reference, tokens=tokens, seed=args.seed or 1)
    if not args.json:
        named = ", ".join(f"{name} {_share(result, key)}" for name, key in
                          (("reward", "reward"), ("KL", "kl"), ("tokens of an answer", "mean_length")))
        print(f"{args.run}: {named}; {result['examples']:,} prompts\n{result['signature']}")
    return {"run": args.run, **result}


def print_words(run: str, result: dict[str, Any]) -> None:
    print("\n".join([f"{run}: {line}" for line in _lines(result)] + [result["signature"]]))


def _lines(result: dict[str, Any]) -> list[str]:
    if result["test"] == "similarity":
        return [f"Spearman {_share(result, 'spearman')} over {result['covered']:,} of {result['pairs']:,} pairs"]
    sections = [
        f"{name or 'no section'}: {'–' if part['accuracy'] is None else format(part['accuracy'], '.1%')} "
        f"of {part['covered']:,}, with inputs "
        f"{'–' if part['accuracy_with_inputs'] is None else format(part['accuracy_with_inputs'], '.1%')}"
        for name, part in result["sections"].items()
    ]
    whole = f"accuracy {_share(result, 'accuracy')} over {result['covered']:,} of {result['questions']:,} questions"
    return [*sections, whole, f"accuracy {_share(result, 'accuracy_with_inputs')} where the inputs are answers too"]


def _share(result: dict[str, Any], name: str) -> str:
    if result[name] is None:
        return "unknown (too few words have a vector)"
    low, high = result[f"{name}_interval"]
    return f"{result[name]:.4f} ({low:.4f} to {high:.4f})"


def predict_command(args: Namespace) -> dict[str, Any]:
    if args.top is not None and not 1 <= args.top <= ALTERNATIVES:
        raise UserError(f"--top {args.top}: ask for 1 to {ALTERNATIVES} alternatives.")
    run, settings = load_run(args)
    with tf32_products(args.precision == "auto"):
        answers = run.predict(args.file, settings=settings, search=search_by(args))
    if args.top is not None:
        answers = [keep_top(answer, args.run, args.top, "--top") for answer in answers]
    if not args.json:
        for answer in answers:
            print(" ".join(answer["answer"].splitlines()))
            for number, some in enumerate(answer["alternatives"] if args.top else (), 1):
                print(f"  {number}: {', '.join(map(_alternative, some))}")
    return {"run": args.run, "answers": answers}


def _alternative(one: dict[str, Any]) -> str:
    return f"{one['text'].strip() or repr(one['text'])} {one['p'] if 'p' in one else one['score']:.4f}"


def search_by(args: Namespace) -> Search:
    """How output texts are searched for, by the options of the command line."""
    return choose_search(args.beam, args.alpha, args.limit, args.samples, args.temperature)
