"""The tiny runs of all kinds and tasks that mangle.py mangles, and the commands that read each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RECURRENT = {"model.hidden": 8, "model.layers": 1}
TRANSFORMER = {"model.layers": 1, "model.width": 8, "model.heads": 2, "model.context": 64}
VECTORS = {"model.embedding": 4, "text.min_count": 1, "train.epochs": 1.0}
SMALL: Mapping[str, Mapping[str, Any]] = {
    "uniform": {}, "unigram": {}, "bigram": {}, "ngram": {"model.order": 3}, "hmm": {"model.states": 3},
    "feedforward": {"model.hidden": 8, "model.embedding": 4, "model.order": 3},
    "rnn": RECURRENT, "gru": RECURRENT, "lstm": RECURRENT, "seq2seq": RECURRENT,
    "gpt": TRANSFORMER, "encoder": TRANSFORMER, "transformer": TRANSFORMER, "word2vec": VECTORS, "glove": VECTORS,
    "loglinear": {"model.order": 2},
}  # fmt: skip
TOKENIZERS = ("characters", "words", "bytes", "bpe")
GRADIENT = ("feedforward", "rnn", "gru", "lstm", "gpt", "encoder", "transformer", "seq2seq")
TASK_DATA = {
    "lm": ["text.txt"], "classify": ["reviews.tsv"], "tag": ["tagged.txt"], "translate": ["pairs.tsv"],
    "caption": ["numbers.csv"], "answer": ["questions.jsonl"], "chat": ["chats.jsonl"], "mask": ["text.txt"],
    "span": ["text.txt"], "denoise": ["text.txt"], "reward": ["preferred.jsonl"], "preference": ["preferred.jsonl"],
}
TASK_KINDS = {
    "lm": ("uniform", "unigram", "bigram", "ngram", "hmm", "feedforward", "rnn", "gru", "lstm", "gpt", "word2vec",
           "glove"),
    "classify": ("ngram", "hmm", "loglinear", "lstm", "gpt", "encoder"), "tag": ("hmm", "gru", "encoder"),
    "translate": ("seq2seq", "transformer", "gpt"), "caption": ("seq2seq", "transformer"),
    "answer": ("transformer", "gpt"), "chat": ("lstm", "gpt"), "mask": ("encoder",), "span": ("transformer",),
    "denoise": ("seq2seq",), "reward": ("gpt", "encoder"), "preference": ("gpt", "lstm"),
}  # fmt: skip


@dataclass(frozen=True)
class Trained:
    """A run of the material: how it was trained, and the commands that read it."""

    name: str
    kind: str
    task: str
    data: Sequence[str]
    settings: Mapping[str, Any]
    base: str = ""                  # the run it was tuned from

    @property
    def train_words(self) -> list[str]:
        given = [f"{name}={value}" for name, value in self.settings.items()]
        begin = ["--from", f"runs/{self.base}"] if self.base else ["--kind", self.kind]
        return ["train", *(f"data/{name}" for name in self.data), *begin, "--task", self.task, *given]

    @property
    def uses(self) -> list[list[str]]:
        run, text = f"runs/{self.name}", "data/" + self.data[0]
        if self.kind in ("word2vec", "glove"):
            return [["analogy", run, "cat"], ["eval", run, "data/similar.tsv", "--json"],
                    ["eval", run, "data/questions-words.txt", "--json"]]
        if self.task == "lm":
            found = [["score", run, text, "--json"], ["eval", run, text, "--json"], ["next", run, "--prompt", "the"],
                     ["sample", run, "--tokens", "8", "--prompt", "the"], ["score", run, "data/inputs.txt"]]
            return [*found, ["predict", run, "data/inputs.txt"]] if self.kind == "hmm" else found
        if self.task in ("chat", "preference"):
            return [["eval", run, text, "--json"], ["sample", run, "--tokens", "8", "--prompt", "the"]]
        if self.task == "reward":
            return [["eval", run, text, "--json"]]
        inputs = {"mask": "data/blanks.txt", "caption": "data/numbers.csv", "answer": text, "span": "data/blanks.txt",
                  "denoise": "data/blanks.txt", "tag": "data/inputs.txt", "classify": "data/inputs.txt"}
        predict = ["predict", run, inputs.get(self.task, "data/inputs.txt"), "--json"]
        if self.task in ("translate", "caption", "answer"):
            predict += ["--limit", "12"]
        return [["eval", run, text, "--json"], predict]


def all_runs() -> Iterator[Trained]:
    number = 0
    for task, kinds in TASK_KINDS.items():
        for kind in kinds:
            settings = dict[str, Any]({} if (kind, task) == ("hmm", "tag") else SMALL[kind])
            if task != "lm" or kind not in ("word2vec", "glove", "uniform"):
                settings["text.tokenizer"] = TOKENIZERS[number % len(TOKENIZERS)]
            if settings.get("text.tokenizer") == "bpe":
                settings["text.vocab"] = 270
            if settings.get("text.tokenizer") == "words":
                settings["text.min_count"] = 1
            if kind in GRADIENT:
                settings |= {"train.steps": 2, "train.tokens": 256}
            number += 1
            name, base = f"{kind}-{task}", ""
            if task == "preference":
                settings, base = {"train.steps": 2, "train.lr": 1e-3}, kind
            yield Trained(kind if task == "lm" else name, kind, task, TASK_DATA[task], settings, base)
    llama = {"model.activation": "swiglu", "model.norm_scale": True, "model.norm_embedding": False,
             "model.qk_norm": False, "text.tokenizer": "bpe", "text.vocab": 270, "train.steps": 2, "train.tokens": 256}
    yield Trained("llama", "gpt", "lm", TASK_DATA["lm"], {**SMALL["gpt"], **llama})
