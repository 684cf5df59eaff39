"""A socket of this machine, and the server behind it, until Ctrl-C."""

import errno
import socket
from contextlib import suppress

import uvicorn
from starlette.types import ASGIApp

from chainrule.errors import UserError

FIRST, LAST = 8000, 8099     # the ports that are tried where none is asked for
WAITING = 1024               # that may knock at once
PATIENCE = 1                 # seconds that answers under way have when the server is stopped


def listen(host: str, port: int | None = None) -> socket.socket:
    """A socket at which browsers can knock already; where no port is given, at the first that is free."""
    trouble = ""
    for number in range(FIRST, LAST + 1) if port is None else (port,):
        try:
            return _bind(host, number)
        except (OSError, OverflowError) as error:
            trouble = f"cannot serve at {host} port {number}: {why(error)}."
            if getattr(error, "errno", None) != errno.EADDRINUSE:
                break
    raise UserError(trouble)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)    # only then asyncio sends without delay
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(WAITING)
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
    """Returns when it has been stopped by hand."""
    with suppress(KeyboardInterrupt):
        server_of(app).run(sockets=[listening])


def server_of(app: ASGIApp) -> uvicorn.Server:
    return uvicorn.Server(uvicorn.Config(
        app, log_level="critical", access_log=False, lifespan="off", ws="none", server_header=False,
        timeout_graceful_shutdown=PATIENCE,
    ))
