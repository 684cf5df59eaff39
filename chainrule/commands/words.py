"""`chainrule next` and `analogy`: the next-word table of a language model, and a − b + c of word vectors."""

from argparse import Namespace
from typing import Any

from chainrule.errors import UserError
from chainrule.inference.generate import NextToken, next_tokens
from chainrule.inference.vectors import Neighbours, analogy, nearest, vectors_of
from chainrule.progress import say
from chainrule.run import load

WIDEST = 40    # characters of a token in a table


def next_command(args: Namespace) -> dict[str, Any]:
    run = load(args.run, args.device)
    if unknown := [word for word in args.prompt.split() if run.tokenizer.lines and run.tokenizer.id(word) is None]:
        say(f"{', '.join(unknown)} is not in the vocabulary of the model, and is read as <unk>")
    table = next_tokens(run.language_model, run.tokenizer, args.prompt, args.top)
    rest = max(0.0, 1.0 - sum(row.p for row in table))
    if not args.json:
        print_table(table, rest, len(run.tokenizer))
    return {"run": args.run, "prompt": args.prompt, "next": [row.as_dict() for row in table], "rest": rest}


def print_table(table: list[NextToken], rest: float, vocab: int) -> None:
    others = f"{vocab - len(table):,} others"
    width = min(WIDEST, max(len(others), *(len(row.token) for row in table)))
    fractions = ["" if row.counts is None else f"{row.counts[0]}/{row.counts[1]}" for row in table]
    wide = max(map(len, fractions))
    for row, fraction in zip(table, fractions):
        print(f"{row.token:<{width}}  {row.p:.4f}" + (f"  {fraction:>{wide}}" if wide else ""))
    if vocab > len(table):
        print(f"{others:<{width}}  {rest:.4f}")


def analogy_command(args: Namespace) -> dict[str, Any]:
    """Of three words a − b + c; of one word its nearest neighbours."""
    if len(args.words) not in (1, 3):
        raise UserError(f"analogy: {len(args.words)} words. Give three, as in `king man woman` for king − man + woman, "
                        "or one, for its neighbours.")
    if args.top < 1:
        raise UserError(f"--top {args.top}: ask for 1 or more.")
    run = load(args.run, args.device)
    vectors = vectors_of(getattr(run.model, "body", run.model), run.tokenizer)
    if len(args.words) == 1:
        question, found = args.words[0], nearest(vectors, args.words[0], args.top)
    else:
        a, b, c = args.words
        question, found = f"{a} − {b} + {c}", analogy(vectors, a, b, c, args.top)
    if not args.json:
        print_neighbours(question, found, answers=len(args.words) == 3)
    return {"run": args.run, "question": question, "nearest": [{"word": word, "cosine": cos} for word, cos in found]}


def print_neighbours(question: str, found: Neighbours, answers: bool) -> None:
    print(f"{question} = {found[0][0]}" if answers and found else f"nearest to {question}:")
    width = min(WIDEST, max((len(word) for word, _ in found), default=0))
    for word, cosine in found:
        print(f"  {word:<{width}}  {cosine:.4f}")
