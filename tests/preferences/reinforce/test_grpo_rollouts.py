"""The benchmark of rollouts, with a tiny model: both sides are measured, and the last line has their share."""

import json
import sys

import pytest
from programs import benchmark


def test_rollouts_are_measured_beside_offline_sampling(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["grpo_rollouts.py", "--small", "--times", "1"])
    benchmark("grpo_rollouts").main()
    *sides, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert [side["side"] for side in sides] == ["offline sampling", "rollouts", "rollouts, and scored"]
    assert all(side["tokens_per_second"] > 0 for side in sides)
    assert last["share"] > 0
