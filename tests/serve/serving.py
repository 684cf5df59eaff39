"""`chainrule serve` in a thread of this process, with small runs of several kinds."""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

from viewer.live import save_run
from viewer.subjects import subject
from viewer.tasks import task_subject

from chainrule.serve.api import make_server
from chainrule.serve.server import GracefulServer, Runs, address, config_of, open_socket
from chainrule.serve.service import ServerLimits, Service, load_runs

KINDS = ("ngram", "hmm", "lstm", "gpt")
WORDS = "the cat saw the dog\nthe dog saw a cat\na cat ran\n" * 8


def save_runs(folder):
    """A run of each sort; the last does not continue texts."""
    words = subject("ngram", WORDS, "words", "words")
    every = [*map(subject, KINDS), words, task_subject("gpt", "classify")]
    return {one.name: save_run(folder / one.name, one) for one in every}


@contextmanager
def serving(paths, limits=None, **options):
    """Its address, and what its requests share."""
    limits = limits or ServerLimits()
    service = Service(load_runs(paths, limits), limits)
    with open_socket("127.0.0.1", 0) as listening:
        server = GracefulServer(config_of(make_server(service, Runs(paths), "the cat", **options)), service)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield SimpleNamespace(url=address(listening), service=service, server=server, paths=paths)
        finally:
            server.should_exit = True
            thread.join()
            service.close()
