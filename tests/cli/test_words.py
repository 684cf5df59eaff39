"""The command line: help without heavy imports, and one line for every mistake that names the nearest right word."""

import runpy
import subprocess
import sys

import pytest

from chainrule import __version__
from chainrule.cli import COMMANDS


def run(*words, **options):
    command = [sys.executable, "-m", "chainrule", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def test_help_names_every_command():
    answer = run("--help")
    assert answer.returncode == 0
    assert all(f"  {command} " in answer.stdout for command in COMMANDS)


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["train", "--help"], ["trian"]])
def test_help_imports_no_large_library(words):
    """So that it answers at once; benchmarks/speed/startup.py measures the time."""
    large = {"torch", "numpy", "rich", "tokenizers"}
    code = f"""import sys
from chainrule.cli import main
try:
    main({words})
except SystemExit:
    pass
print({large} & set(sys.modules))"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "set()"


def test_each_command_has_its_own_help(capsys):
    from chainrule.cli import main

    for command in COMMANDS:
        with pytest.raises(SystemExit) as caught:
            main([command, "--help"])
        assert caught.value.code == 0
        assert f"usage: chainrule {command}" in capsys.readouterr().out


def test_help_says_that_an_unfinished_run_is_resumed_even_with_overwrite(capsys):
    from chainrule.cli import main

    with pytest.raises(SystemExit):
        main(["train", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "an unfinished run of the same recipe is resumed (to start it again" in printed


def test_the_version_is_said(chainrule):
    assert chainrule("--version").out == f"chainrule {__version__}\n"


def test_python_m_chainrule_is_the_same(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["chainrule", "--version"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("chainrule", run_name="__main__")
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"chainrule {__version__}\n"


def test_no_words_at_all_shows_the_commands_but_is_no_success(chainrule):
    answer = chainrule()
    assert answer.code == 2
    assert "train" in answer.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trian"], "unknown command trian. Did you mean train?"),
        (["xyzzy"], "unknown command xyzzy. Known: demo, train"),
        (["--versoin"], "unknown option --versoin. Did you mean --version?"),
        (["train", "a.txt", "--kidn", "ngram"], "unknown option --kidn. Did you mean --kind?"),
        (["sample", "run", "extra"], "unknown word extra."),
        (["train"], "the following arguments are required: text"),
        (["train", "book.txt", "--out"], "expected one argument"),
        (["sample", "run", "--tokens", "many"], "invalid int value: 'many'"),
        (["sample", "run", "--device", "tpu"], "invalid choice: 'tpu'"),
        (["train", "book.txt", "--kind", "ngarm"], "unknown kind ngarm. Did you mean ngram?"),
        (["train", "book.txt", "--task", "tgag"], "unknown task tgag"),
        (["train", "book.txt", "model.ordr=3"], "unknown setting model.ordr. Did you mean model.order?"),
        (["train", "book.txt", "modle.order=3"], "unknown setting modle.order. Did you mean model?"),
        (["train", "book.txt", "order=3"], "order=3 is neither a text nor a setting. Did you mean model.order?"),
        (["train", "book.txt", "model.order=three"], "model.order=three is not a whole number"),
        (["train", "book.txt", "model.order=0"], "model.order=0"),
        (["train", "book.txt", "train.steps=0"], "train.steps=0: it must be 1 or more"),
        (["train", "book.txt", "train.tolerance=-1"], "train.tolerance=-1: it must be 0 or more"),
        (["train", "book.txt", "train.seed=99999999999999999999999"], "it must be at most 9223372036854775807"),
        (["train", "book.txt", "--recipe", "none.toml"], "none.toml: there is no such file"),
        (["settings", "ngarm"], "unknown kind ngarm. Did you mean ngram?"),
        (["export", "run", "out"], "the following arguments are required: --to"),
        (["export", "run", "out", "--to", "tflite"], "invalid choice: 'tflite'"),
    ],
)
def test_a_slip_is_one_line_that_names_the_cure(complaint, book, words, says):
    assert says in complaint(*words)
    assert not (book.parent / "runs").exists()


def test_settings_may_stand_anywhere_but_a_prompt_is_a_prompt(chainrule, trained):
    answer = chainrule("sample", trained, "--prompt", "the a.b=c", "--tokens", "5")
    assert answer.code == 0
    assert answer.out.startswith("the a.b=c")


def test_a_reader_that_has_read_enough_is_no_error(trained, tmp_path):
    (tmp_path / "long.txt").write_text("the cat saw the dog. " * 3000)
    command = f"{sys.executable} -m chainrule score {trained} long.txt | head -1"
    answer = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert answer.stderr == ""
    assert len(answer.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "out of memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory"),
        (OSError(28, "No space left on device", "x"), "no space to write x"),
        (PermissionError(13, "Permission denied", "x"), "x: Permission denied"),
    ],
)
def test_trouble_with_the_machine_is_one_line(complaint, monkeypatch, error, says):
    import chainrule.commands.show as module

    def fail(args):
        raise error

    monkeypatch.setattr(module, "settings_command", fail)
    assert says in complaint("settings")


def test_a_bug_keeps_its_traceback(chainrule, monkeypatch):
    import chainrule.commands.show as module

    def fail(args):
        raise RuntimeError("a bug")

    monkeypatch.setattr(module, "settings_command", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        chainrule("settings")
