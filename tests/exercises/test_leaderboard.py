"""The leaderboard: submissions ranked on a hidden text; those that fail get one line each."""

import json
import math
import re
import signal
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from chainrule.cli import main
from chainrule.exercises import EXERCISES, LESSONS, submission
from chainrule.exercises.leaderboard import Rules, as_markdown, judge, judge_all, run_stage
from chainrule.exercises.submission import Refusal

BIGRAM = '''
from pathlib import Path

import torch

from chainrule.model import LanguageModel


class Bigram(LanguageModel):
    """Counts of pairs of bytes, plus a half."""

    def __init__(self, counts):
        super().__init__()
        self.register_buffer("logits", (counts + 0.5).log())

    def start(self, rows, source=None, lengths=None):
        return torch.zeros(rows, 0)

    def step(self, tokens, state):
        return self.logits[tokens], state


def train(text_path, minutes):
    tokens = torch.tensor([0, *(byte + 1 for byte in Path(text_path).read_bytes())])
    counts = torch.zeros(257, 257).index_put_((tokens[:-1], tokens[1:]), torch.ones(len(tokens) - 1), accumulate=True)
    return Bigram(counts)
'''
WRONG = {
    "future": (
        "return self.logits[tokens], state",
        "return self.logits[tokens.roll(-1, 1)], state",
        "breaks a law of the protocol: check_future_is_not_seen",
    ),
    "cheat": (
        "    def step(",
        "    def score(self, tokens, targets, state):\n        return 0.0 * tokens, state\n\n    def step(",
        "breaks a law of the protocol: check_scores_agree_with_steps",
    ),
    "nan": ("(counts + 0.5).log()", "counts * float('nan')", "gives numbers that are not finite: it diverged"),
    "narrow": (
        "torch.zeros(257, 257)",
        "torch.zeros(260, 260)",
        "the model has 260 logits, and its tokenizer (bytes) 257 tokens",
    ),
    "impossible": (
        "(counts + 0.5).log()",
        "(counts + 0.5).log().index_fill(1, torch.tensor([98]), -torch.inf)",
        "the model gives a token of this text probability 0, so its cross-entropy is infinite",
    ),
    "nothing": (
        "return Bigram(counts)",
        "return None",
        "train returned a NoneType, not a chainrule.model.LanguageModel",
    ),
    "raises": ("return Bigram(counts)", "raise KeyError('oh')", "KeyError: 'oh' (raises.py line "),
    "untrained": ("def train(", "def teach(", "has no function train(text_path, minutes)"),
    "unsaved": (
        "return Bigram(counts)",
        "model = Bigram(counts)\n    model.f = lambda: 0\n    return model",
        "cannot be saved by torch.save",
    ),
}
BOOK = "the cow eats grass, and the cow eats corn. the cat saw the dog; the dog saw the cat.\n" * 20


@pytest.fixture
def desk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / ".cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "submission", raising=False)
    (tmp_path / "book.txt").write_text(BOOK)
    (tmp_path / "hidden.txt").write_text(BOOK[:1200].replace("grass", "hay"))
    before = signal.getsignal(signal.SIGALRM)
    yield tmp_path
    signal.signal(signal.SIGALRM, before)
    sys.modules.pop("submission", None)


def judged_here(folder, name, source):
    """The two stages in this process; the result, or the problem."""
    file, out = folder / f"{name}.py", folder / f"out-{name}"
    file.write_text(source)
    out.mkdir()
    if submission.main(["train", str(file), "book.txt", "1", str(out)]) == 0:
        submission.main(["evaluate", str(file), "hidden.txt", str(out)])
    return json.loads((out / "result.json").read_text())


def bits_by_hand():
    """The bigram's bits per byte on the hidden text, counted with a dictionary."""
    read, hidden = (
        [0, *(byte + 1 for byte in BOOK.encode())],
        [0, *(byte + 1 for byte in Path("hidden.txt").read_bytes()), 0],
    )
    counts = {}
    for pair in pairwise(read):
        counts[pair] = counts.get(pair, 0.5) + 1
    totals = {}
    for (first, _), count in counts.items():
        totals[first] = totals.get(first, 257 * 0.5) + count - 0.5
    bits = sum(-math.log2(counts.get(pair, 0.5) / totals.get(pair[0], 257 * 0.5)) for pair in pairwise(hidden))
    return bits / (len(hidden) - 2)


def test_the_figure_is_that_of_a_count_by_hand(desk):
    assert judged_here(desk, "good", BIGRAM)["bits_per_byte"] == pytest.approx(bits_by_hand(), abs=1e-5)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_submission_is_one_line(desk, name):
    right, wrong, said = WRONG[name]
    assert BIGRAM.count(right) == 1
    result = judged_here(desk, name, BIGRAM.replace(right, wrong))
    assert said in result["problem"]
    assert "\n" not in result["problem"]


def test_a_model_that_sees_the_future_only_in_the_hidden_text_is_found(desk):
    """It keeps the laws on random tokens, and looks ahead where a row begins with the text's first letters."""
    peeking = "ahead = tokens.roll(-1, 1) if tokens.shape[1] > 12 else tokens\n        return self.logits[ahead], state"
    found = judged_here(desk, "sly", BIGRAM.replace("return self.logits[tokens], state", peeking))
    assert "read token by token, the hidden text has other logits" in found["problem"]


def test_a_tokenizer_or_a_run_can_be_returned(desk):
    words = BIGRAM.replace(
        "return Bigram(counts)",
        (
            "import chainrule\n    run = chainrule.train(text_path, kind='ngram', out='runs/six', model_order=6,\n"
            "                          text_tokenizer='characters')\n    return {}"
        ),
    )
    assert judged_here(desk, "pair", words.format("run.language_model, run.tokenizer"))["signature"].startswith(
        "unit:characters"
    )
    again = judged_here(desk, "run", words.format("run"))
    assert 0 < again["bits_per_byte"] < bits_by_hand()


def test_submissions_are_ranked_in_processes_of_their_own(desk, capsys):
    for name, source in {"good": BIGRAM, "crash": "import os\nos._exit(9)\n"}.items():
        (desk / f"{name}.py").write_text(source)
    words = [
        "good.py",
        "crash.py",
        "missing.py",
        "--train",
        "book.txt",
        "--hidden",
        "hidden.txt",
        "--minutes",
        "0.1",
        "--out",
        "board",
    ]
    assert main(["leaderboard", *words]) == 0
    table = capsys.readouterr().out
    board = json.loads((desk / "board" / "leaderboard.json").read_text())
    assert (desk / "board" / "leaderboard.md").read_text() == table
    (best,), refused = board["ranked"], {one["name"]: one["problem"] for one in board["refused"]}
    assert best["name"] == "good"
    assert best["bits_per_byte"] == pytest.approx(bits_by_hand(), abs=1e-5)
    low, high = best["bits_per_byte_interval"]
    assert low < best["bits_per_byte"] < high
    assert refused == {"crash": "its process ended with code 9", "missing": "there is no such file or run"}
    assert main(["leaderboard", *words]) == 2
    assert "board exists already" in capsys.readouterr().err


def test_a_submission_that_hangs_is_stopped(desk):
    (desk / "hang.py").write_text("import time\n\ndef train(text_path, minutes):\n    time.sleep(60)\n")
    words = ["train", str(desk / "hang.py"), "book.txt"]
    late = -0.075  # so many minutes that 0.05 seconds are left with the grace
    assert run_stage([*words, str(late), str(desk)], desk, 20, "late") == {"problem": "late"}
    assert run_stage([*words, "1", str(desk)], desk, 0.3, "late") == {"problem": "late"}


def test_the_table_is_sorted_and_has_differences(desk, monkeypatch):
    (desk / "good.py").write_text(BIGRAM)
    (desk / "worse.py").write_text(BIGRAM.replace("counts + 0.5", "counts + 50"))

    def here(path, rules, folder):
        submission.main(["train", str(path), str(rules.train), "1", str(folder)])
        submission.main(["evaluate", str(path), str(rules.hidden), str(folder)])
        return json.loads((folder / "result.json").read_text()) | {"train_seconds": 1.0}

    monkeypatch.setattr("chainrule.exercises.leaderboard.judge", here)
    board = judge_all([Path("worse.py"), Path("good.py")], Rules(Path("book.txt"), Path("hidden.txt"), 1))
    assert [row["name"] for row in board["ranked"]] == ["good", "worse"]
    assert board["ranked"][0]["behind"] is None
    assert board["ranked"][1]["behind_interval"][0] > 0
    assert all("text:" in row["signature"] for row in board["ranked"])
    assert as_markdown(board).splitlines()[4].startswith("| 1 | good | ")


def test_a_run_that_cannot_be_loaded_is_one_line(desk):
    (desk / "damaged").mkdir()
    (desk / "out").mkdir()
    submission.main(["evaluate", str(desk / "damaged"), "hidden.txt", str(desk / "out")])
    assert "is not a run: it has no recipe.json" in json.loads((desk / "out" / "result.json").read_text())["problem"]
    rules = Rules(Path("book.txt"), Path("hidden.txt"), 1)
    assert judge(Path("nowhere"), rules, desk)["problem"] == "there is no such file or run"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a.py", "--train", "none.txt", "--hidden", "hidden.txt"), "--train none.txt: there is no such file"),
        (
            ("a.py", "--train", "book.txt", "--hidden", "short.txt"),
            "--hidden short.txt has 5 bytes; an interval needs 512",
        ),
        (
            ("a.py", "--train", "book.txt", "--hidden", "hidden.txt", "--minutes", "0"),
            "--minutes 0: it must be above 0",
        ),
        (("a.py", "a.py", "--train", "book.txt", "--hidden", "hidden.txt"), "a submission is given twice"),
    ],
)
def test_a_mistake_of_the_teacher_is_one_line(desk, capsys, words, said):
    (desk / "short.txt").write_text("short")
    assert main(["leaderboard", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (desk / "leaderboard").exists()


def test_a_refusal_is_told_in_its_own_words():
    assert submission.one_line(Refusal("two\nlines"), Path("x.py")) == "two lines"


def test_the_commands_and_the_submission_of_the_page_run(desk, capsys):
    page = (Path(__file__).parents[2] / "docs" / "tools" / "exercises.md").read_text(encoding="utf-8")
    sessions = "".join(re.findall(r"^```console\n(.*?)^```", page, re.DOTALL | re.MULTILINE)).splitlines()
    for line in sessions:
        assert main(line.split()[2:]) == 0, line
    (source,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert 0 < judged_here(desk, "page", source)["bits_per_byte"] < 2
    assert all(f"`{name}`" in page for name in (*EXERCISES, *LESSONS))
