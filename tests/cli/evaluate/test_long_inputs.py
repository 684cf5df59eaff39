"""A run on texts longer than those of training: `eval`, `score` and `sample` with RoPE scaling."""

import pytest

GPT = ("--kind", "gpt", "model.layers=1", "model.width=16", "model.heads=2", "model.context=16", "train.steps=2",
       "text.tokenizer=characters")


@pytest.fixture
def trained(chainrule, book):
    answer = chainrule("train", book, *GPT, "--out", "runs/gpt")
    assert answer.code == 0, answer
    return "runs/gpt"


def test_a_run_is_evaluated_beyond_its_context(chainrule, trained, book):
    plain = chainrule("eval", trained, book, "--json").json
    longer = chainrule("eval", trained, book, "model.context=64", "--json").json
    yarn = chainrule("eval", trained, book, "model.rope_scaling=yarn", "model.rope_factor=4", "--json").json
    assert "context:16|" in plain["signature"]
    assert "context:64|" in longer["signature"]
    assert "context:64|" in yarn["signature"]
    assert len({plain["nats"], longer["nats"], yarn["nats"]}) == 3
    scored = chainrule("score", trained, book, "model.rope_scaling=yarn", "model.rope_factor=4", "--json").json
    assert scored["bits_per_byte"] == pytest.approx(yarn["bits_per_byte"])


def test_a_sample_is_longer_than_the_context(chainrule, trained):
    long = ("sample", trained, "--tokens", "40", "model.rope_scaling=linear", "model.rope_factor=4", "--json")
    assert chainrule(*long).code == 0


def test_training_goes_on_with_a_longer_context(chainrule, trained, book):
    answer = chainrule("train", book, "--from", trained, "model.rope_scaling=ntk", "model.rope_factor=2",
                       "train.steps=1", "--out", "runs/longer")
    assert answer.code == 0, answer
    assert "context:32|" in chainrule("eval", "runs/longer", book, "--json").json["signature"]


def test_other_settings_are_those_of_the_run(complaint, trained, book):
    assert "model.width=32 cannot be set here" in complaint("eval", trained, book, "model.width=32")
    assert "model.rope_factor=2 needs model.rope_scaling" in complaint("eval", trained, book, "model.rope_factor=2")
    assert "text.errors cannot be set here" in complaint("sample", trained, "text.errors=replace")
    assert "train.lr=1 cannot be set here" in complaint("eval", trained, book, "train.lr=1")


def test_an_n_gram_has_no_context_to_stretch(chainrule, complaint, book):
    chainrule("train", book, "--out", "runs/five", "text.tokenizer=characters")
    line = complaint("eval", "runs/five", book, "model.context=64")
    assert "model.context=64 cannot be set here: the run has its own. None of its settings can." in line


def test_positions_of_several_runs_are_a_table_and_a_picture(chainrule, trained, book, tmp_path):
    chainrule("train", book, "--out", "runs/five", "text.tokenizer=characters")
    runs = ("runs/five", trained, f"{trained}:model.rope_scaling=yarn,model.rope_factor=4")
    answer = chainrule("eval", *runs, book, "--by-position", "--plot", "far.svg")
    assert answer.code == 0, answer
    head, *rows = answer.out.splitlines()
    assert [word.strip() for word in head.split("  ") if word] == ["position", "five", "gpt", "gpt, yarn, 4"]
    assert [row.split()[0] for row in rows[:3]] == ["1–16", "17–32", "33–64"]
    assert [row.count("–") for row in rows[:3]] == [1, 2, 2]                   # the plain run ends with its context
    assert (tmp_path / "far.svg").read_text().count("<polyline") == 3
    measured = chainrule("eval", *runs, book, "--by-position", "--json").json["runs"]
    assert [one["by_position"][-1]["to"] for one in measured] == [64, 16, 64]
    assert measured[0]["by_position"][0]["bits_per_byte"] > measured[0]["by_position"][2]["bits_per_byte"]


def test_positions_need_one_tokenizer_and_a_text(chainrule, complaint, trained, book):
    assert "needs a held-out text after the runs" in complaint("eval", trained, trained, "--by-position")
    assert "--plot is for eval --by-position" in complaint("eval", trained, book, "--plot", "x.svg")
    chainrule("train", book, "--out", "runs/words", "text.tokenizer=words")
    line = complaint("eval", trained, "runs/words", book, "--by-position")
    assert "results cannot share a table of perplexity when their" in line


def test_packed_documents_are_learned_and_scored_apart(chainrule, tmp_path):
    (tmp_path / "tales.jsonl").write_text("".join(f'{{"text": "a {name} sat on a {name}."}}\n' for name in
                                                  ("cat", "dog", "hen", "fox", "owl", "cow")) * 12)
    packed = ("tales.jsonl", "text.packed=true", *GPT[2:])
    assert chainrule("train", *packed, "--kind", "gpt", "--out", "runs/packed").code == 0
    apart = chainrule("eval", "runs/packed", "tales.jsonl", "--json").json
    together = chainrule("eval", "runs/packed", "tales.jsonl", "text.packed=false", "--json").json
    assert "context:16 of a document|" in apart["signature"]
    assert "context:16|" in together["signature"]
    assert apart["nats"] != together["nats"]
    scored = chainrule("score", "runs/packed", "tales.jsonl", "--json").json
    assert scored["bits_per_byte"] == pytest.approx(apart["bits_per_byte"])
    lstm = ("train", "tales.jsonl", "text.packed=true", "--kind", "lstm", "model.hidden=8", "train.steps=2",
            "text.tokenizer=characters")
    refused = chainrule(*lstm, "train.batching=streams", "--out", "runs/lstm")
    assert refused.code == 2
    assert "text.packed=true resets the state at each document" in refused.err.splitlines()[-1]
    assert chainrule(*lstm, "train.batching=windows", "train.length=16", "--out", "runs/lstm").code == 0
