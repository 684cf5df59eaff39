"""A live page, served from a thread of this process."""

import threading
from contextlib import contextmanager

from viewer.subjects import subject
from viewer.tasks import task_subject

from chainrule.run import save
from chainrule.serve.app import make_app
from chainrule.serve.server import Runs, address, open_socket, server_of
from chainrule.viewer.coverage import tiny_subject


@contextmanager
def served(runs, text="the cat", **about):
    """The address of a server that has these runs, by name and path."""
    with open_socket("127.0.0.1", 0) as listening:
        server = server_of(make_app(Runs(runs), text, **about))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield address(listening)
        finally:
            server.should_exit = True
            thread.join()


def save_run(folder, one):
    curves = [{"event": "step", "step": step, "kl": 0.1 * step, "reward": 0.5} for step in range(9)]
    save(folder, one.run.model, one.run.tokenizer, one.run.recipe, labels=one.run.labels,
         log=curves if one.name == "gpt" else [])
    return folder


def saved_runs(folder):
    """One of each sort, so that every view fits some."""
    words = subject("word2vec", unit="words", text="the cat and the dog saw a bird and a cow " * 6, embedding=8)
    tiny = subject("rnn", "a b a b\nb a\n" * 4, "tiny", "words", hidden=3, embedding=2)
    every = [tiny_subject("hmm", "tag"), tiny_subject("rnn", "classify"), subject("ngram"),
             subject("hmm"), subject("rnn"), subject("lstm"), subject("gpt"), tiny,
             task_subject("seq2seq", "translate"), words]
    return {one.name: save_run(folder / one.name, one) for one in every}
