"""The commands that `kills.py` kills: every kind and every task, with models and texts as small as they can be."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WORDS = ("cat", "dog", "owl", "fox", "cow", "hen")
STEPS = ("train.steps=6", "train.evaluate=3", "train.checkpoint=0", "train.tokens=96", "train.precision=float32")
LENGTH = "train.length=16"
SMALL = ("model.layers=1", "model.width=16", "model.heads=2", "model.context=32")
TINY = ("model.hidden=12", "model.layers=1")
CHARACTERS = "text.tokenizer=characters"
TOKENS = ("text.tokenizer=words", "text.min_count=1")
NUMBERS = {"one": "eins", "two": "zwei", "three": "drei"}


@dataclass(frozen=True)
class Case:
    """A command line. {data} and {base} in it are folders; unless it says where it writes to, that is `out`."""

    name: str
    words: tuple[str, ...]
    ranks: bool = False            # whether several ranks run it, too

    def command(self, data: Path, base: Path) -> list[str]:
        words = [word.format(data=data, base=base) for word in self.words]
        return words if any(word.startswith("out") for word in words) else [*words, "--out", "out"]


def write_data(folder: Path) -> None:
    """What the commands read."""
    folder.mkdir(parents=True)
    rows = [(one, other, "fast" if place % 3 else "slow") for one in WORDS for place, other in enumerate(WORDS)]
    (folder / "book.txt").write_text(2 * "".join(
        f"the {a} saw the {b}, and the {b} ran {how}.\n" for a, b, how in rows))
    (folder / "labelled.tsv").write_text("sentence\tlabel\n" + "".join(
        f"the {a} ran {how}\t{how}\n" for a, _, how in rows))
    (folder / "tagged.txt").write_text("\n".join(f"the\tDET\n{a}\tNOUN\nran\tVERB\n" for a, _, _ in rows))
    pairs = [(f"{a} {b}", f"{NUMBERS[a]} {NUMBERS[b]}") for a in NUMBERS for b in NUMBERS] * 3
    (folder / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    np.save(folder / "pictures.npy", np.random.default_rng(1).integers(0, 255, (24, 8, 8), np.uint8))
    (folder / "captions.txt").write_text("".join(f"a {WORDS[place % 6]}\n" for place in range(24)))
    write_lines(folder / "questions.jsonl", [{"question": f"who saw the {b}?", "context": f"the {a} saw the {b}.",
                                              "answers": a} for a, b, _ in rows[:24]])
    write_lines(folder / "chats.jsonl", [{"messages": [
        {"role": "user", "content": f"the {a}"}, {"role": "assistant", "content": how}]} for a, _, how in rows[:20]])
    write_lines(folder / "preferences.jsonl", [
        {"prompt": f"the {a} ran", "chosen": " fast.", "rejected": " slow."} for a, _, _ in rows[:20]])
    write_lines(folder / "prompts.jsonl", [{"prompt": f"the {a}"} for a in WORDS])


def write_lines(path: Path, records: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


BASE = ("train", "{data}/book.txt", "--kind", "gpt", CHARACTERS, *SMALL, *STEPS, LENGTH)    # the run that is tuned


def every_case() -> dict[str, Case]:
    return {case.name: case for case in (*_kinds(), *_tasks(), *_tuned(), *_others())}


def _kinds() -> Iterator[Case]:
    def case(name: str, *words: str, kind: str | None = None, ranks: bool = False) -> Case:
        length = (LENGTH,) if STEPS[0] in words else ()
        return Case(name, ("train", "{data}/book.txt", "--kind", kind or name, *words, *length), ranks)

    for kind in ("uniform", "unigram", "bigram"):
        yield case(kind, CHARACTERS)
    yield case("ngram", CHARACTERS, "model.order=4", ranks=True)
    yield case("hmm", CHARACTERS, "model.states=4", "train.steps=4", ranks=True)
    yield case("hmm-restarts", CHARACTERS, "model.states=3", "train.steps=3", "train.restarts=2", kind="hmm")
    yield case("feedforward", CHARACTERS, "model.order=3", "model.hidden=12", "model.embedding=6", *STEPS)
    for kind in ("rnn", "gru", "lstm"):
        yield case(kind, CHARACTERS, *TINY, "model.dropout=0.1", *STEPS, ranks=kind == "lstm")
    yield case("lstm-streams", CHARACTERS, *TINY, "train.batching=streams", *STEPS, kind="lstm")
    yield case("gpt-muon", "text.tokenizer=bpe", "text.vocab=280", *SMALL, "train.optimizer=muon", *STEPS, kind="gpt",
               ranks=True)
    yield case("gpt-adamw", CHARACTERS, *SMALL, "model.dropout=0.1", "train.optimizer=adamw", *STEPS, kind="gpt",
               ranks=True)
    yield case("gpt-experts", CHARACTERS, *SMALL, "model.experts=4", *STEPS, kind="gpt")
    yield case("gpt-patience", CHARACTERS, *SMALL, "train.patience=1", "train.lr=0.5", *STEPS, kind="gpt")
    for kind in ("word2vec", "glove"):
        yield case(kind, "model.embedding=8", "text.min_count=1", "train.epochs=2")


def _tasks() -> Iterator[Case]:
    def case(kind: str, task: str, files: str, *words: str, ranks: bool = False) -> Case:
        given = (f"{{data}}/{name}" for name in files.split())
        return Case(f"{task}-{kind}", ("train", *given, "--task", task, "--kind", kind, *words), ranks)

    yield case("unigram", "classify", "labelled.tsv", *TOKENS)
    yield case("loglinear", "classify", "labelled.tsv", *TOKENS, "model.order=2")
    yield case("lstm", "classify", "labelled.tsv", *TOKENS, *TINY, *STEPS, ranks=True)
    yield case("encoder", "classify", "labelled.tsv", *TOKENS, *SMALL, *STEPS)
    yield case("gpt", "classify", "labelled.tsv", *TOKENS, *SMALL, *STEPS)
    yield case("hmm", "tag", "tagged.txt")
    yield case("gru", "tag", "tagged.txt", *TINY, "head.char_cnn=true", *STEPS)
    yield case("seq2seq", "translate", "pairs.tsv", *TOKENS, *TINY, *STEPS, ranks=True)
    yield case("transformer", "translate", "pairs.tsv", *TOKENS, *SMALL, *STEPS)
    yield case("gpt", "translate", "pairs.tsv", *TOKENS, *SMALL, *STEPS)
    yield case("seq2seq", "caption", "pictures.npy captions.txt", *TOKENS, *TINY, *STEPS)
    yield case("seq2seq", "answer", "questions.jsonl", *TOKENS, *TINY, *STEPS)
    yield case("encoder", "mask", "book.txt", CHARACTERS, *SMALL, *STEPS, LENGTH)
    yield case("transformer", "span", "book.txt", CHARACTERS, *SMALL, *STEPS, LENGTH)
    yield case("transformer", "denoise", "book.txt", CHARACTERS, *SMALL, *STEPS, LENGTH)


def _tuned() -> Iterator[Case]:
    def case(name: str, file: str, *words: str) -> Case:
        task = name.partition("-")[0]
        steps = (word for word in STEPS if not word.startswith("train.tokens"))
        return Case(name, ("train", f"{{data}}/{file}", "--task", task, "--from", "{base}", "train.lr=1e-3", *steps,
                           "text.held_out=0.2", *words))

    yield case("lm-lora", "book.txt", "train.lora=2")
    yield case("chat-gpt", "chats.jsonl")
    yield case("reward-gpt", "preferences.jsonl")
    yield case("preference-dpo", "preferences.jsonl")
    yield case("preference-lora", "preferences.jsonl", "train.lora=2")
    yield case("reinforce-grpo", "prompts.jsonl", "--reward", "{base}", "train.prompts=2", "train.generations=2",
               "train.answer_tokens=4")


def _others() -> Iterator[Case]:
    yield Case("compare", ("compare", "{data}/book.txt", "--kinds", "unigram,hmm,lstm", "compare.by=flops",
                           "compare.flops=3e8", "lstm.model.hidden=12", "lstm.model.layers=1", "hmm.model.states=3",
                           "text.held_out=0.3"))
    yield Case("export-huggingface", ("export", "{base}", "out", "--to", "huggingface", "--overwrite"))
    yield Case("look-file", ("look", "{base}", "--text", "the cat", "--out", "out.html"))
