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
    ports = range(FIRST, LAST + 1) if port is None else range(port, port + 1)
    for number in ports:
        try:
            return _bind(host, number)
        except (OSError, OverflowError) as error:
            if getattr(error, "errno", None) != errno.EADDRINUSE or number == ports[-1]:
                raise UserError(f"cannot serve at {host} port {number}: {why(error)}.") from None
    raise AssertionError("there are ports")


def _bind(host: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
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
