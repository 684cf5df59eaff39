"""`chainrule serve`: runs behind OpenAI's interface, with the live page beside it."""

import os
import re
import sys
from argparse import Namespace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from chainrule.commands.query import set_precision
from chainrule.device import choose_device
from chainrule.errors import UserError
from chainrule.progress import set_quiet
from chainrule.run import Run, read_about
from chainrule.text.chat_template import find_template
from chainrule.viewer.notebook import find_runs, opening_text

NEEDED = ("fastapi", "uvicorn", "sse_starlette", "prometheus_client", "jinja2")
MISSING = "serving needs fastapi, uvicorn, sse-starlette and prometheus-client: pip install 'chainrule[serve]'."
ORIGIN = re.compile(r"(?i)[a-z][a-z0-9+.-]*://[^/?#\s]+")
KEY = "CHAINRULE_KEY"    # environment variable


def serve_command(args: Namespace) -> dict[str, Any]:
    """Serves until Ctrl-C or SIGTERM, which is the normal end."""
    key, paths = key_of(args), find_runs(args.run)
    for origin in args.cors:
        require_origin(origin)
    try:
        from chainrule.serve.api import make_server
        from chainrule.serve.server import GracefulServer, Runs, address, config_of, open_socket
        from chainrule.serve.service import ServerLimits, Service, load_runs
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        raise UserError(MISSING) from None
    template = None if args.chat_template is None else find_template(args.chat_template)
    limits = ServerLimits(rows=args.rows, queue=args.queue, seconds=args.seconds, grace=args.grace)
    device = choose_device(args.device)
    with open_socket(args.host, args.port) as socket:    # first, since loading may take long
        rounded: set[Path] = set()    # whose weights are not in float32: the page loads them itself

        def prepare(run: Run) -> None:
            if set_precision(run, args.precision, device):
                rounded.add(run.path)

        service = Service(load_runs(paths, limits, device, template, prepare), limits)
        service.start()
        loaded = {name: one.run for name, one in service.served.items() if one.run.path not in rounded}
        app = make_server(service, Runs(paths, device, loaded), opening_text(map(read_about, paths.values())),
                          host=args.host, key=key, cors=args.cors)
        url = address(socket)
        print(f"{', '.join(paths)}: {url} (OpenAI's interface: {url}v1; stop with Ctrl-C)", file=sys.stderr, flush=True)
        set_quiet(True)
        try:
            GracefulServer(config_of(app), service).run(sockets=[socket])
        finally:
            service.close()
    return {"runs": list(paths), "url": url}


def key_of(args: Namespace) -> str | None:
    """The key that clients must send. Only a server for this machine may do without."""
    key: str | None = args.key if args.key is not None else os.environ.get(KEY) or None
    if key is not None and not (key.isascii() and key.isprintable() and key and " " not in key):
        raise UserError("--key must be letters, digits and signs of ASCII without spaces; `openssl rand -hex 16` makes "
                        "a good one.")
    if key is None and not is_loopback(args.host):
        raise UserError(f"--host {args.host} can be reached from other machines, so it needs --key K: clients send it "
                        f"as a bearer token. It can also be in the environment, as {KEY}.")
    return key


def require_origin(origin: str) -> None:
    if origin == "*":
        raise UserError("--cors * would let every web page use the server; name the sites, as in --cors "
                        "https://example.org.")
    if not ORIGIN.fullmatch(origin):
        raise UserError(f"--cors {origin} is not an origin, which is a scheme, a host and maybe a port: "
                        "https://example.org.")


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
