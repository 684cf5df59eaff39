"""A slice of benchmarks/robustness/mangle.py: whatever is changed, the answer is right, or one line.

The process is a new one, since its cases are forked, and torch cannot train in a fork of a process that has trained.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import ROOT, benchmark, program

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="it needs Linux")


@pytest.fixture
def cases():
    return benchmark("mangle")


def test_sixty_cases_end_well(tmp_path):
    words = [sys.executable, str(program("mangle")), "--cases", "60", "--seed", "3", "--runs", "ngram",
             "hmm-tag", "bigram", "--workers", "2"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    answer = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=600,
                            env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)})
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    assert lines, answer.stderr
    assert lines[:-1] == []
    assert lines[-1]["cases"] == lines[-1]["right"] == 60
    assert {"run", "resealed", "file", "setting"} <= lines[-1]["of"].keys()


def test_what_is_found_has_a_name(cases):
    def found(reference=None, strict=False, refused=False, what="run", **outcome):
        case = cases.Case(1, what, "", [["score"]], strict, refused)
        return cases.classify(case, cases.Outcome(**outcome), reference)

    line = "chainrule: it is damaged."
    assert found(code=2, err=f"notes\n{line}\n") == "line"
    assert found(code=2, err=f"{line}\n{line}\n") == "unclear"
    assert found(code=2, err="") == "unclear"
    assert found(code=2, err="chainrule: out of memory. Try …") == "memory"
    assert found(code=2, err="chainrule: out of memory. Try …", what="setting") == "line"
    assert found(trace="Traceback …") == "traceback"
    assert found(died=9) == "hang"
    assert found(died=11) == "crash"
    assert found(code=0, peak=cases.MEMORY + 1) == "memory"
    assert found(code=0, out="1", reference="1", strict=True) == "same"
    assert found(code=0, out="2", reference="1", strict=True) == "silent"
    assert found(code=0, out="2", reference="1") == "answer"
    assert found(code=0, out="1", refused=True) == "silent"
    assert cases.comparable('{"nats": 1, "seconds": 2}') == cases.comparable('{"nats": 1, "seconds": 3}')


def test_a_case_is_made_by_its_number_and_the_seed(cases, tmp_path):
    runs = list(cases.all_runs())
    cases.write_data(tmp_path / "data")
    files = cases.readings([run.name for run in runs], tmp_path / "data")
    once, again = ([cases.make_case(number, 5, runs, files) for number in range(50)] for _ in range(2))
    assert [(case.what, case.about, case.words) for case in once] == [(case.what, case.about, case.words)
                                                                      for case in again]
    assert len({case.about for case in once}) > 30
    changed = Path(tmp_path / "data" / "recipe.toml")
    before = changed.read_bytes()
    next(case for case in (cases.make_case(number, 5, runs, files) for number in range(4000))
         if case.about == "recipe.toml").change(tmp_path)
    assert changed.read_bytes() != before
