"""The benchmark of long documents: examples of an encyclopedia, one small training, and the table and pictures."""

import json
import lzma
from xml.etree import ElementTree

import pytest
from programs import benchmark


@pytest.fixture(scope="module")
def program():
    return benchmark("long_documents")


def article(name):
    lead = f"The {name} is a small animal that lives in the forests of the north."
    rest = f"A {name} eats grass and leaves. In the winter the {name} sleeps under the snow. "
    return f'<page><title>{name}</title><text xml:space="preserve">{lead} {rest * 6}</text></page>'


@pytest.fixture
def folder(program, tmp_path):
    dump = tmp_path / "dump"
    dump.write_text("\n".join(article(f"{one}{other}") for one in ("red ", "old ", "sea ", "fat ")
                              for other in ("fox", "cat", "owl")))
    program.main(["prepare", str(dump), "--out", str(tmp_path / "data"), "--lengths", "16", "64", "--least", "100",
                  "--held-out", "2", "--vocab", "300"])
    return tmp_path / "data"


def rows(folder, name):
    return [json.loads(line) for line in lzma.decompress((folder / name).read_bytes()).decode().splitlines()]


def test_examples_are_divided_by_article_and_cut_by_tokens(program, folder):
    from chainrule.text.tokenizers.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    sizes = {name: len(rows(folder, f"{name}-16.jsonl.xz")) for name in ("train", "valid", "test")}
    assert sizes == {"train": 9, "valid": 1, "test": 2}
    targets = [row["target"] for name in sizes for row in rows(folder, f"{name}-64.jsonl.xz")]
    assert len(set(targets)) == 12
    for length in (16, 64):
        for row in rows(folder, f"train-{length}.jsonl.xz"):
            assert length - 3 <= len(tokenizer.encode(row["source"])) < length
            assert row["target"] not in row["source"]
            assert row["source"].split("\n")[0] in row["target"]    # the title


def test_a_model_is_trained_measured_and_drawn(program, folder, tmp_path, monkeypatch):
    small = {"model.layers": 1, "model.width": 16, "model.heads": 2}
    monkeypatch.setitem(program.MODELS, "decoder-only", ("gpt", small))
    results = [program.train(folder, "decoder-only", length, {"train.steps": 2}, tmp_path / f"run{length}", "cpu")
               for length in (16, 64)]
    for row in results:
        low, high = row["perplexity_interval"]
        assert low <= row["perplexity"] <= high
        assert 0 <= row["rouge_l"] <= 100
    program.write_all(results, tmp_path)
    assert (tmp_path / "table.md").read_text().count("| decoder-only |") == 2
    for name in ("perplexity", "rouge_l"):
        (line,) = ElementTree.fromstring((tmp_path / f"{name}.svg").read_text()).findall("{*}polyline")
        assert len(line.get("points").split()) == 2
    wanted = {"model", "length", "parameters", "perplexity", "rouge_l", "steps"}
    assert wanted <= json.loads((tmp_path / "results.jsonl").read_text().splitlines()[0]).keys()
