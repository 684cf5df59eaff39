"""Files of other programs that mangle.py mangles: what writes them, and the commands that read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


def exports(runs: Sequence[str]) -> list[list[str]]:
    """Commands that write files of other formats from the runs that there are."""
    wanted = {"ngram": [["export", "runs/ngram", "data/model.arpa", "--to", "arpa"]],
              "word2vec": [["export", "runs/word2vec", f"data/vectors.{form}", "--to", form]
                           for form in ("glove", "word2vec", "word2vec-binary")],
              "llama": [["export", "runs/llama", "data/hf", "--to", "huggingface"],
                        ["export", "runs/llama", "data/model.gguf", "--to", "gguf"]]}
    return [words for name in runs for words in wanted.get(name, [])]


@dataclass(frozen=True)
class Reading:
    """A file in data/ and the commands that read it."""

    file: str
    uses: Sequence[Sequence[str]]


def readings(runs: Sequence[str], data: Path) -> list[Reading]:
    score, analogy = ["score", "made", "data/inputs.txt"], ["analogy", "made", "cat"]
    every = [
        *(Reading(file, [["import", f"data/{file}", "made"], ask]) for file, ask in (
            ("model.arpa", score), ("model.gguf", score), ("model.toml", ["next", "made"]),
            ("vectors.glove", analogy), ("vectors.word2vec", analogy), ("vectors.word2vec-binary", analogy))),
        *(Reading(f"hf/{name}", [["import", "data/hf", "made"], score]) for name in (
            "model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")),
        *(Reading(f"reviews.{form}", [["train", f"data/reviews.{form}", "--kind", "ngram", "--task", "classify",
                                       "--out", "made", "--json", "text.tokenizer=words"]])
          for form in ("tsv", "csv", "jsonl", "tsv.gz", "tsv.xz", "tsv.zst")),
        *(Reading(f"text.txt{form}", [["train", f"data/text.txt{form}", "--kind", "bigram", "--out", "made", "--json"]])
          for form in ("", ".gz", ".xz", ".zst")),
        *(Reading(f"tagged.{form}", [["train", f"data/tagged.{form}", "--kind", "hmm", "--task", "tag", "--out", "made",
                                      "--json"]]) for form in ("conllu", "txt")),
        Reading("network.toml", [["import", "data/network.toml", "made"]]),
        Reading("recipe.toml", [["train", "data/text.txt", "--recipe", "data/recipe.toml", "--out", "made", "--json"]]),
        Reading("questions-words.txt", [["eval", "runs/word2vec", "data/questions-words.txt", "--json"]]),
        Reading("similar.tsv", [["eval", "runs/word2vec", "data/similar.tsv", "--json"]]),
        Reading("blanks.txt", [["predict", "runs/encoder-mask", "data/blanks.txt"]]),
        Reading("inputs.txt", [["predict", "runs/hmm-tag", "data/inputs.txt"]]),
        Reading("pairs.tsv", [["eval", "runs/seq2seq-translate", "data/pairs.tsv", "--json", "--limit", "12"]]),
        Reading("numbers.csv", [["eval", "runs/transformer-caption", "data/numbers.csv", "--json", "--limit", "12"]]),
        Reading("features.npy", [["predict", "runs/transformer-caption", "data/features.npy", "--limit", "12"]]),
        Reading("questions.jsonl", [["eval", "runs/gpt-answer", "data/questions.jsonl", "--json", "--limit", "12"]]),
        Reading("chats.jsonl", [["eval", "runs/gpt-chat", "data/chats.jsonl", "--json"]]),
        Reading("preferred.jsonl", [["eval", "runs/gpt-preference", "data/preferred.jsonl", "--json"]]),
        Reading("preferred.jsonl", [["eval", "runs/encoder-reward", "data/preferred.jsonl", "--json"]]),
        Reading("frames.jsonl", [["train", "data/frames.jsonl", "--kind", "lstm", "--task", "tag", "--out", "made",
                                  "--json", "model.hidden=4", "model.layers=1", "train.steps=2"]]),
    ]  # fmt: skip
    needed = {reading: [word.split("/")[1] for words in reading.uses for word in words if word.startswith("runs/")]
              for reading in map(_hashable, every)}
    return [reading for reading, names in needed.items() if (data / reading.file).exists() and set(names) <= set(runs)]


def _hashable(reading: Reading) -> Reading:
    return Reading(reading.file, tuple(map(tuple, reading.uses)))
