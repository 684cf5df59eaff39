"""The HTTP server: a listening socket of this machine, and uvicorn on it until Ctrl-C."""

import errno
import socket
from contextlib import suppress

import uvicorn
from starlette.types import ASGIApp

from chainrule.errors import UserError

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
    return uvicorn.Server(uvicorn.Config(
        app, log_level="critical", access_log=False, lifespan="off", ws="none", server_header=False,
        timeout_graceful_shutdown=GRACE,
    ))
