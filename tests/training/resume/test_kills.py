"""SIGKILL at random moments, a small slice of benchmarks/robustness/kills.py: it ends as if it had not been killed."""

import json
import subprocess
import sys

import pytest
from programs import program


@pytest.mark.skipif(not hasattr(sys, "addaudithook") or sys.platform != "linux", reason="it forks, and reads /proc")
def test_commands_that_are_killed_at_random_moments_end_bit_equal():
    words = ["--trials", "8", "--seed", "7", "--cases", "ngram,lstm,hmm,word2vec"]
    done = subprocess.run([sys.executable, str(program("kills")), *words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["ended_bit_equal"] == said["trials"] == 8
    assert said["kills"] >= 8
