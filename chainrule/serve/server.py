"""The server's runs, loaded when they are requested; and its socket, with uvicorn on it until Ctrl-C.

A run is loaded again when its files have changed. If they are deleted or damaged, a request for the run is answered
with the reason, and the other runs still work.
"""

import errno
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeAlias

import torch
import uvicorn
from starlette.types import ASGIApp

from chainrule.errors import UserError, did_you_mean
from chainrule.inference.evaluate import count_parameters
from chainrule.run import ADAPTER, CHAT_TEMPLATE, MODEL, RECIPE, TOKENIZER, Run, load
from chainrule.serve.slow_clients import TimedHTTP
from chainrule.viewer.subject import Subject
from chainrule.viewer.views import every_view

Stamp: TypeAlias = tuple[Any, ...]


class Runs:
    def __init__(
        self, paths: Mapping[str, Path], device: torch.device | str = "cpu", loaded: Mapping[str, Run] = {}
    ):
        """`loaded`: runs that need not be loaded, by their names."""
        self.paths, self.device = paths, device
        self._loaded: dict[str, tuple[Stamp, Subject]] = {
            name: (stamp_of(run.path), Subject(name, run)) for name, run in loaded.items()}

    def subject(self, name: str) -> Subject:
        """Loads the run if necessary. Only one caller at a time may ask for the same name."""
        path = self.paths[self.known(name)]
        stamp = stamp_of(path)
        if name not in self._loaded or self._loaded[name][0] != stamp:
            self._loaded.pop(name, None)    # first, so that memory need not hold both
            self._loaded[name] = stamp, Subject(name, load(path, self.device))
        return self._loaded[name][1]

    def known(self, name: str) -> str:
        if name not in self.paths:
            hint = did_you_mean(name, self.paths) or f" There are: {', '.join(self.paths)}."
            raise UserError(f"there is no run {name} here.{hint}")
        return name

    def about(self, name: str) -> dict[str, Any]:
        """What the page shows of a run: its size, and the views that fit it; or why it cannot be loaded."""
        try:
            subject = self.subject(name)
        except UserError as error:
            return {"name": name, "error": str(error)}
        return {
            "name": name,
            "kind": subject.run.recipe.kind,
            "task": subject.run.recipe.task,
            "parameters": count_parameters(subject.model),
            "views": [view.name for view in every_view().values() if view.fits(subject)],
        }


def stamp_of(path: Path) -> Stamp:
    """A value that differs once the run has been changed."""
    return tuple(_stamp(path / name) for name in (RECIPE, TOKENIZER, MODEL, ADAPTER, CHAT_TEMPLATE))


def _stamp(file: Path) -> Stamp | None:
    try:
        facts = file.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size, facts.st_ino


FIRST, LAST = 8000, 8099     # the ports that are tried if none is given
BACKLOG = 1024               # connections that may wait to be accepted
GRACE = 1                    # seconds that requests under way get when the server is stopped


def open_socket(host: str, port: int | None = None) -> socket.socket:
    """A listening socket; if no port is given, at the first that is free."""
    problem = ""
    for number in range(FIRST, LAST + 1) if port is None else (port,):
        try:
            return _bind(host, number)
        except (OSError, OverflowError) as error:
            problem = f"cannot serve at {host} port {number}: {why(error)}."
            if getattr(error, "errno", None) != errno.EADDRINUSE:
                break
    raise UserError(problem)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)    # so that asyncio sets TCP_NODELAY
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def why(error: Exception) -> str:
    if isinstance(error, OverflowError):
        return "a port is a number from 0 to 65535"
    if getattr(error, "errno", None) == errno.EADDRINUSE:
        return "it is taken. --port N chooses another; without --port a free one is found"
    return getattr(error, "strerror", None) or str(error)


def address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def serve(app: ASGIApp, listening: socket.socket) -> None:
    """Returns after Ctrl-C."""
    with suppress(KeyboardInterrupt):
        server_of(app).run(sockets=[listening])


def server_of(app: ASGIApp) -> uvicorn.Server:
    return uvicorn.Server(config_of(app))


def config_of(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app, log_level="critical", access_log=False, lifespan="off", ws="none", server_header=False,
        timeout_graceful_shutdown=GRACE, http=TimedHTTP,
    )


class Stoppable(Protocol):
    """What must come to its end before the server does."""

    stop_by: float | None

    @property
    def stopped(self) -> bool: ...

    def stop(self) -> None: ...


class GracefulServer(uvicorn.Server):
    """Ends after SIGTERM or Ctrl-C once the requests under way are answered; at once after a second signal."""

    def __init__(self, config: uvicorn.Config, service: Stoppable):
        super().__init__(config)
        self.service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.service.stop_by is not None:
            self.should_exit = self.force_exit = True
        else:
            self.service.stop()

    async def on_tick(self, counter: int) -> bool:
        self.should_exit = self.should_exit or self.service.stopped
        return await super().on_tick(counter)
