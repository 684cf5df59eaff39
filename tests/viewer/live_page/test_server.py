"""Sockets of the live page: where it listens, and how it ends."""

import socket

import pytest

from chainrule.errors import UserError
from chainrule.serve import server
from chainrule.serve.server import address, open_socket, serve


def test_without_a_port_the_first_that_is_free_is_taken():
    with open_socket("127.0.0.1") as one, open_socket("127.0.0.1") as other:
        assert one.getsockname()[1] < other.getsockname()[1]
        assert address(one) == f"http://127.0.0.1:{one.getsockname()[1]}/"


def test_when_every_port_is_taken_the_last_is_named(monkeypatch):
    with open_socket("127.0.0.1", 0) as one:
        port = one.getsockname()[1]
        monkeypatch.setattr(server, "FIRST", port)
        monkeypatch.setattr(server, "LAST", port)
        with pytest.raises(UserError, match=f"port {port}: it is taken. --port N"):
            open_socket("127.0.0.1")


@pytest.mark.parametrize(("host", "shown"), [("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("localhost", "127.0.0.1")])
def test_the_address_is_one_that_a_browser_on_this_machine_can_open(host, shown):
    if host == "::1" and not socket.has_ipv6:
        pytest.skip("there is no IPv6 here")
    try:
        listening = open_socket(host, 0)
    except UserError as error:
        pytest.skip(str(error))
    with listening:
        assert address(listening).startswith(f"http://{shown}:")


def test_ctrl_c_is_the_way_to_end_it(monkeypatch):
    class Server:
        def run(self, sockets):
            raise KeyboardInterrupt

    monkeypatch.setattr(server, "server_of", lambda app: Server())
    with open_socket("127.0.0.1", 0) as listening:
        serve(None, listening)
