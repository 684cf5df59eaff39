"""The model card: a YAML head that parses, the results with their signature, and no path of this machine."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from chainrule.cli import main
from chainrule.formats.hugging_face_folder import write_folder
from chainrule.run import load
from tests.formats.test_hugging_face_heads import NO_NORM, TEXT, made
from tests.formats.test_hugging_face_import import write_theirs


def read_card(folder: Path) -> tuple[dict[str, Any], str]:
    _, head, body = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(head), body


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("card")
    (folder / "secret.txt").write_text(TEXT * 30)
    words = ["train", str(folder / "secret.txt"), "--kind", "gpt", "--out", str(folder / "mine"), "--device", "cpu",
             "text.tokenizer=characters", "model.layers=1", "model.width=8", "model.heads=1", "model.context=16",
             "train.steps=2", "train.tokens=32"]  # fmt: skip
    assert main(words) == 0
    assert main(["export", str(folder / "mine"), str(folder / "out"), "--to", "huggingface"]) == 0
    return folder


def test_the_head_says_what_the_hub_asks_for(trained: Path) -> None:
    head, _ = read_card(trained / "out")
    result = load(trained / "mine").result
    assert (head["library_name"], head["pipeline_tag"], head["tags"]) == (
        "transformers", "text-generation", ["chainrule", "gpt"])
    index = head["model-index"][0]
    assert index["name"] == "out"
    values = {one["type"]: one["value"] for one in index["results"][0]["metrics"]}
    assert values["bits_per_byte"] == result["bits_per_byte"]
    assert "license" not in head


def test_the_body_has_results_settings_and_signature_but_no_path(trained: Path) -> None:
    _, body = read_card(trained / "out")
    result = load(trained / "mine").result
    assert result["signature"] in body
    assert f"| `perplexity` | {result['perplexity']:.6g} |" in body
    assert "| `model.width` | `8` |" in body
    assert 'AutoModelForCausalLM.from_pretrained("out")' in body
    whole = "".join(file.read_text() for file in (trained / "out").iterdir() if file.suffix != ".safetensors")
    assert "secret" not in whole
    assert str(trained.parent) not in whole


def test_an_imported_model_names_its_source(tmp_path: Path) -> None:
    write_theirs(tmp_path / "SmallLM", "llama")
    (tmp_path / "SmallLM/README.md").write_text("---\nlicense: mit\nlanguage:\n- en\n- de\n---\n")
    assert main(["import", str(tmp_path / "SmallLM"), str(tmp_path / "run")]) == 0
    write_folder(load(tmp_path / "run"), tmp_path / "out")
    head, body = read_card(tmp_path / "out")
    assert (head["license"], head["language"], head["base_model"]) == ("mit", ["en", "de"], "SmallLM")
    assert "Its first weights are those of SmallLM (LlamaForCausalLM)." in body
    assert str(tmp_path) not in json.dumps(head) + body


@pytest.mark.parametrize(("task", "pipeline", "opener"), [
    ("mask", "fill-mask", "AutoModelForMaskedLM"),
    ("classify", "text-classification", "AutoModelForSequenceClassification"),
    ("tag", "token-classification", "AutoModelForTokenClassification"),
])  # fmt: skip
def test_each_task_has_its_pipeline(task: str, pipeline: str, opener: str, tmp_path: Path) -> None:
    write_folder(made(tmp_path / "run", "encoder", task, NO_NORM), tmp_path / "out")
    head, body = read_card(tmp_path / "out")
    assert head["pipeline_tag"] == pipeline
    assert f"from transformers import {opener}, AutoTokenizer" in body
    assert ("Labels: bad, good, so so." in body) == (task != "mask")
