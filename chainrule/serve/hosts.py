"""Only requests that name this server by a name of its own are answered.

A page of a stranger can make a browser believe that the stranger's name is 127.0.0.1 (DNS rebinding) and so read what
is served here; but its requests still say the stranger's name.
"""

import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from chainrule.serve.answers import refuse

LOOPBACK = ("localhost", "127.0.0.1", "::1")


class OwnHosts:
    """Around an app: refuses the rest."""

    def __init__(self, app: ASGIApp, host: str):
        self.app, self.host = app, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self.owns(said(scope)):
            line = "this server answers only to its own name; open it by the address that it printed."
            await refuse(421, line)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def owns(self, name: str) -> bool:
        """One that serves all addresses of the machine has all of them, and the machine's names."""
        if name in (*LOOPBACK, self.host.lower()):
            return True
        return self.host in ("0.0.0.0", "::") and (is_address(name) or name in machine_names())


def said(scope: Scope) -> str:
    """The name in the Host header, without its port."""
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
