"""`chainrule train` on preferences: curves in the terminal, and a page of them in the run's folder."""

import json
from pathlib import Path

import pytest
from formats.test_hugging_face_export import made
from viewer.pages.test_page import data_of

from chainrule.cli import main
from chainrule.commands import train
from chainrule.run import CURVES


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A command that tunes a tiny model in a few steps."""
    base = made(tmp_path / "base", "gpt", {})
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"prompt": "a cow", "chosen": " is", "rejected": " jumps"}) + "\n")
    return ["train", str(pairs), "--task", "preference", "--from", str(base.path), "--valid", str(pairs),
            "train.steps=10", "train.lr=0.01", "--device", "cpu", "--out", str(tmp_path / "tuned")]


def test_the_curves_are_drawn_in_the_terminal_and_on_a_page(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    said = capsys.readouterr().err
    assert "curves.html shows the curves" in said
    assert any(line.startswith("rewards/margins") and "▁" in line and "→" in line for line in said.splitlines())
    page = (tmp_path / "tuned" / CURVES).read_text()
    (shown,) = data_of(page, "preferences")["models"]
    assert any("margin" in chart["title"] and "<polyline" in chart["svg"] for chart in shown["charts"])
    assert 'id="again"' not in page
    assert main([*words, "--overwrite"]) == 0                 # the page is the run's own file


def test_a_page_that_cannot_be_written_does_not_end_the_training(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object, **how: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(train, "write_text", fail)
    assert main(words) == 0
    assert not (tmp_path / "tuned" / CURVES).exists()
