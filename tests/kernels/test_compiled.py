"""C++ is compiled once for a machine, and where it cannot be compiled everything works without it."""

import logging
import os
import shutil
import signal

import pytest
import torch

from chainrule.kernels.cpu import compiled, viterbi
from chainrule.models.hmm.hmm import HMM, HMMSettings

needs_a_compiler = pytest.mark.skipif(
    shutil.which((os.environ.get("CXX") or "c++").split()[0]) is None, reason="no C++ compiler here"
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "answer.cpp"
    path.write_text('extern "C" int answer() { return 42; }\n')
    return path


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)


@needs_a_compiler
def test_a_file_is_compiled_once_and_then_found(source, cache, monkeypatch):
    assert compiled.Library(source).functions.answer() == 42
    (made,) = cache.iterdir()
    monkeypatch.setattr(compiled.Library, "_compiled", lambda library: pytest.fail("it is compiled again"))
    assert compiled.Library(source).functions.answer() == 42
    assert list(cache.iterdir()) == [made]


@needs_a_compiler
def test_another_source_or_other_flags_are_compiled_again(source):
    assert compiled.Library(source).functions.answer() == 42
    source.write_text('extern "C" int answer() { return ANSWER; }\n')
    assert compiled.Library(source, (*compiled.FLAGS, "-DANSWER=1")).functions.answer() == 1
    assert compiled.Library(source, (*compiled.FLAGS, "-DANSWER=2")).functions.answer() == 2


@needs_a_compiler
@pytest.mark.parametrize("damaged", [slice(0), slice(5_000), slice(None, None, -1)], ids=["empty", "cut", "reversed"])
def test_a_damaged_library_is_made_again(source, cache, damaged):
    path = compiled.Library(source)._compiled()
    content = path.read_bytes()
    path.write_bytes(content[damaged])
    assert compiled.Library(source).functions.answer() == 42
    assert path.read_bytes() == content


@needs_a_compiler
def test_what_cannot_be_compiled_is_no_library_and_the_log_says_why(source, caplog):
    source.write_text("this is no C++")
    with caplog.at_level(logging.INFO):
        assert compiled.Library(source).functions is None
    assert "answer.cpp is not compiled" in caplog.text
    assert "this is no C++" in caplog.text


def test_a_machine_without_a_compiler_has_no_library(source, no_compiler, caplog):
    with caplog.at_level(logging.INFO):
        library = compiled.Library(source)
        assert not library.pays(1e9)
    assert "answer.cpp is not compiled" in caplog.text
    assert "No such file" in caplog.text


def test_a_compiler_that_hangs_is_given_up(source, tmp_path, monkeypatch):
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("CXX", str(slow))
    monkeypatch.setattr(compiled, "LIMIT", 0.1)
    assert compiled.Library(source).functions is None


@needs_a_compiler
def test_a_cache_that_cannot_be_written_is_no_error(source, cache):
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    assert compiled.Library(source).functions is None


@needs_a_compiler
def test_work_adds_up_until_it_repays_the_compiler(source, cache):
    library = compiled.Library(source)
    assert not library.pays(0.6 * compiled.WORTH)
    assert not cache.exists()
    assert library.pays(0.6 * compiled.WORTH)
    assert library.pays(0)
    assert cache.exists()


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_share_the_parts_also_after_a_fork(threads):
    """Threads do not live on in a forked process, which would wait for them without end."""
    before, parts = torch.get_num_threads(), list(range(5))

    def shared():
        done = []
        compiled.in_threads(done.append, parts)
        return sorted(done) == parts

    torch.set_num_threads(threads)
    try:
        assert shared()
        if (child := os.fork()) == 0:
            signal.alarm(20)
            os._exit(0 if shared() else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        torch.set_num_threads(before)


def test_viterbi_works_without_a_compiler(no_compiler, monkeypatch, capsys):
    monkeypatch.setattr(viterbi, "LIBRARY", compiled.Library(viterbi.LIBRARY.source))
    model = HMM(HMMSettings(3), 4)
    model.forget(torch.Generator().manual_seed(1))
    rows = torch.randint(1, 4, (40, 30), generator=torch.Generator().manual_seed(1))
    wanted = model.viterbi(rows)
    monkeypatch.setattr(compiled, "WORTH", 0)
    assert all(map(torch.equal, model.viterbi(rows), wanted))
    assert capsys.readouterr() == ("", "")
