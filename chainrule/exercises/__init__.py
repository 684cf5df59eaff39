"""Exercises for students: a folder for each lesson with stubs, tests and snapshots; copying, checking, a leaderboard.

A lesson's folder is material that is copied, not a package: its stubs (`NAME.py`), `adapters.py`, which binds a
student's code to the tests, `test_NAME.py`, and `snapshots/NAME.npz`, which the package `snapshots` makes. The notebook
is made from the stubs when the folder is copied.
"""

from dataclasses import dataclass
from pathlib import Path

from chainrule.errors import UserError, did_you_mean

MATERIAL = Path(__file__).parent
ADAPTERS = "adapters.py"
SNAPSHOTS = "snapshots"


@dataclass(frozen=True)
class Exercise:
    name: str             # on the command line: forward-backward
    lesson: str           # the folder of its lesson
    idea: str             # what the student writes, in one line

    @property
    def module(self) -> str:
        """The name of its stub as a Python module."""
        return self.name.replace("-", "_")

    @property
    def stub(self) -> Path:
        return MATERIAL / self.lesson / f"{self.module}.py"

    @property
    def tests(self) -> Path:
        return MATERIAL / self.lesson / f"test_{self.module}.py"

    @property
    def snapshot(self) -> Path:
        return MATERIAL / self.lesson / SNAPSHOTS / f"{self.module}.npz"


LESSONS = {
    "ngrams": "n-grams and hidden Markov models",
    "vectors": "word vectors and feed-forward networks",
    "recurrent": "RNN, LSTM, BPTT and vanishing gradients",
    "seq2seq": "sequence to sequence and attention",
    "transformers": "Transformers and GPT",
    "pretraining": "pretraining, fine-tuning, preferences",
}

EXERCISES = {
    exercise.name: exercise
    for exercise in (
        Exercise("bigram", "ngrams", "bigram by maximum likelihood, and sampling: the weighted die, softmax(βy)"),
        Exercise("perplexity", "ngrams", "cross-entropy, perplexity, bits per byte"),
        Exercise("kneser-ney", "ngrams", "interpolated modified Kneser–Ney smoothing of a bigram"),
        Exercise("forward-backward", "ngrams", "α, β, the likelihood and the posteriors γ, ξ of an HMM"),
        Exercise("viterbi", "ngrams", "the most probable states of an HMM"),
        Exercise("word2vec", "vectors", "negative sampling: the loss and its gradient"),
        Exercise("bpe", "vectors", "byte-pair encoding: learning merges, and encoding"),
        Exercise("feedforward", "vectors", "a feed-forward language model behind the protocol"),
        Exercise("elman", "recurrent", "the Elman network, and backpropagation through time by hand"),
        Exercise("lstm", "recurrent", "the LSTM cell: gates f, i, o"),
        Exercise("context", "seq2seq", "attention over a source: scores, weights α, context vectors"),
        Exercise("beam-search", "seq2seq", "beam search with a length penalty"),
        Exercise("attention", "transformers", "causal multi-head attention in matrix form"),
        Exercise("gpt", "transformers", "a whole GPT behind the protocol"),
        Exercise("lora", "pretraining", "a linear layer with a LoRA adapter"),
        Exercise("dpo", "pretraining", "the DPO loss and its gradient"),
    )
}


def of_lesson(lesson: str) -> list[Exercise]:
    return [exercise for exercise in EXERCISES.values() if exercise.lesson == lesson]


def find_exercises(name: str) -> list[Exercise]:
    """The exercise of this name, or all of a lesson."""
    if name in LESSONS:
        return of_lesson(name)
    if name in EXERCISES:
        return [EXERCISES[name]]
    known = [*LESSONS, *EXERCISES]
    raise UserError(f"unknown exercise {name}.{did_you_mean(name, known)} `chainrule exercise` lists them all.")
