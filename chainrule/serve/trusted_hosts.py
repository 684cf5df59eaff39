"""Trusted hosts: only requests whose Host header names this server are answered, against DNS rebinding.

A stranger's web page can make its own name resolve to 127.0.0.1 and so read what is served here, but its requests
still carry the stranger's name. Starlette's TrustedHostMiddleware compares the header with a fixed list: it cannot
accept every IP address, which a server on all addresses (0.0.0.0) must do, since a rebinding attack needs a name and
a machine does not know every address by which it is reached. It also answers in plain text, without our headers.
"""

import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "::1")
ALL_ADDRESSES = ("0.0.0.0", "::")


class TrustedHosts:
    """Middleware: answers `refusal` to a request that names another host. `host`: where the server listens."""

    def __init__(self, app: ASGIApp, host: str, refusal: Response):
        self.app, self.host, self.refusal = app, host.lower(), refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trusted = scope["type"] != "http" or self.trusts(host_name(scope))
        await (self.app if trusted else self.refusal)(scope, receive, send)

    def trusts(self, name: str) -> bool:
        if name in (*LOOPBACK, self.host):
            return True
        return self.host in ALL_ADDRESSES and (is_address(name) or name in machine_names())


def host_name(scope: Scope) -> str:
    """The name or address in the Host header, without its port and without the brackets of IPv6."""
    host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_address(name: str) -> bool:
    try:
        return bool(ip_address(name))
    except ValueError:
        return False


def machine_names() -> set[str]:
    name = socket.gethostname().lower()
    return {name, f"{name}.local"}
