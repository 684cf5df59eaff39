"""Small runs that give answers, and sessions with them."""

import sys
from types import SimpleNamespace

from viewer.live import save_run
from viewer.subjects import subject
from viewer.tasks import task_subject

from chainrule.inference.sampling import Sampling
from chainrule.prefer.clicks import ClickFile
from chainrule.prefer.drawing import load_policy
from chainrule.prefer.prompt_file import Placed
from chainrule.prefer.session import Session

WORDS = "the cat saw the dog\nthe dog saw a cat and the bird\na cat ran\nthe bird saw it\n" * 8
PROMPTS = ("the", "the dog saw", "a cat", "the bird saw")


def save_words(folder):
    """Its answers end by themselves, at the end of a line."""
    return save_run(folder / "words", subject("ngram", WORDS, "words", "words"))


def save_classifier(folder):
    return save_run(folder / "classifier", task_subject("gpt", "classify"))


def make_session(run, out, prompts=PROMPTS, pairs=None, tokens=12, overlap=1.0, **more):
    policy = load_policy(run, Sampling(), tokens)
    placed = [Placed(policy.form(prompt), "a test") for prompt in prompts]
    return Session(ClickFile(out), policy, placed, pairs or max(1, len(placed)), overlap=overlap, **more)


def make_judge(monkeypatch, function):
    """A module `opinion` with this function."""
    monkeypatch.setitem(sys.modules, "opinion", SimpleNamespace(score=function, number=3))
