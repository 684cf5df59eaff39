"""Small runs that give answers, and sessions with them."""

import sys
import threading
from contextlib import contextmanager
from types import SimpleNamespace

from viewer.live import save_run
from viewer.subjects import subject
from viewer.tasks import task_subject

from chainrule.inference.sampling import Sampling
from chainrule.prefer.app import make_app
from chainrule.prefer.clicks import ClickFile
from chainrule.prefer.drawing import load_policy
from chainrule.prefer.prompt_file import Placed
from chainrule.prefer.session import Session
from chainrule.serve.server import address, open_socket, server_of

WORDS = "the cat saw the dog\nthe dog saw a cat and the bird\na cat ran\nthe bird saw it\n" * 8
PROMPTS = ("the", "the dog saw", "a cat", "the bird saw")


def save_words(folder):
    """Its answers end by themselves, at the end of a line."""
    return save_run(folder / "words", subject("ngram", WORDS, "words", "words"))


def save_network(folder, kind="gpt"):
    """It can be tuned."""
    return save_run(folder / kind, subject(kind, WORDS, kind, "words"))


def save_classifier(folder):
    return save_run(folder / "classifier", task_subject("gpt", "classify"))


def make_session(run, out, prompts=PROMPTS, pairs=None, tokens=12, overlap=1.0, **more):
    policy = load_policy(run, Sampling(), tokens)
    placed = [Placed(policy.form(prompt), "a test") for prompt in prompts]
    return Session(ClickFile(out), policy, placed, pairs or max(1, len(placed)), overlap=overlap, **more)


def make_judge(monkeypatch, function):
    """A module `opinion` with this function."""
    monkeypatch.setitem(sys.modules, "opinion", SimpleNamespace(score=function, number=3))


@contextmanager
def prefer_page(session, settings=None):
    """The address of a page, served from a thread of this process; and its app."""
    app = make_app(session, settings or {}, "cpu")
    with open_socket("127.0.0.1", 0) as listening:
        server = server_of(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield SimpleNamespace(url=address(listening), app=app, session=session, tuning=app.state.tuning)
        finally:
            server.should_exit = True
            thread.join()
            app.state.tuning.close()
            session.close()
