"""`chainrule serve`: what it refuses before it serves."""

import builtins
from importlib import import_module

import pytest
import torch
import uvicorn
from viewer.live import save_run
from viewer.subjects import subject

from chainrule import cli
from chainrule.commands.serve import is_loopback


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("runs") / "ngram", subject("ngram"))


@pytest.mark.parametrize(("words", "line"), [
    (["--host", "0.0.0.0"], "--host 0.0.0.0 can be reached from other machines, so it needs --key K"),
    (["--key", ""], "--key must be letters, digits and signs of ASCII without spaces"),
    (["--key", "two words"], "--key must be letters"),
    (["--key", "schlüssel"], "--key must be letters"),
    (["--rows", "0"], "--rows 0 is not valid: it must be 1 or more"),
    (["--queue", "0"], "--queue 0 is not valid"),
    (["--seconds", "nan"], "--seconds nan is not valid"),
    (["--grace", "-1"], "--grace"),
    (["--port", "99999"], "cannot serve at 127.0.0.1 port 99999"),
    (["--cors", "*"], "--cors * would let every web page"),
    (["--cors", "example.org"], "--cors example.org is not an origin"),
    (["--precision", "bfloat16"], "--precision bfloat16 is for neural networks"),
])
def test_what_is_wrong_is_one_line(run, capsys, words, line, monkeypatch):
    monkeypatch.delenv("CHAINRULE_KEY", raising=False)
    assert cli.main(["serve", str(run), *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"chainrule: {line}")
    assert said.count("\n") == 1


def test_a_damaged_run_is_noticed_at_the_start(run, tmp_path, capsys):
    broken = save_run(tmp_path / "broken", subject("ngram"))
    (broken / "model.safetensors").write_bytes(b"")
    assert cli.main(["serve", str(run), str(broken)]) == 2
    assert "model.safetensors is damaged" in capsys.readouterr().err
    assert cli.main(["serve", str(tmp_path / "none")]) == 2
    assert "there is no run at" in capsys.readouterr().err


def test_without_its_libraries_it_says_what_to_install(run, capsys, monkeypatch):
    real = builtins.__import__

    def missing(name, *rest):
        if name == "chainrule.serve.api":
            raise ModuleNotFoundError("No module named 'sse_starlette'", name="sse_starlette")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert cli.main(["serve", str(run)]) == 2
    assert "pip install 'chainrule[serve]'" in capsys.readouterr().err


def test_the_page_has_a_float32_model_of_its_own_where_the_server_has_rounded_weights(tmp_path, monkeypatch):
    gpt, served = save_run(tmp_path / "gpt", subject("gpt")), {}
    api, server = (import_module(f"chainrule.serve.{name}") for name in ("api", "server"))    # other tests forget them
    monkeypatch.setattr(api, "make_server", lambda service, runs, *rest, **more: served.update(
        dtype=next(service.served["gpt"].run.model.parameters()).dtype,
        page=next(runs.subject("gpt").model.parameters()).dtype, shared=runs.subject("gpt").run.model is
        service.served["gpt"].run.model))
    monkeypatch.setattr(server.GracefulServer, "run", lambda self, sockets: None)
    monkeypatch.setattr(server, "config_of", lambda app: uvicorn.Config("none:app"))
    assert cli.main(["serve", str(gpt), "--precision", "bfloat16", "--device", "cpu"]) == 0
    assert served == {"dtype": torch.bfloat16, "page": torch.float32, "shared": False}
    assert cli.main(["serve", str(gpt), "--device", "cpu"]) == 0
    assert served == {"dtype": torch.float32, "page": torch.float32, "shared": True}


@pytest.mark.parametrize(("host", "here"), [
    ("127.0.0.1", True), ("127.3.2.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
    ("192.168.0.7", False), ("gpu1", False),
])
def test_only_this_machine_needs_no_key(host, here):
    assert is_loopback(host) == here
