"""AutoTokenizer of transformers opens a run folder: the same ids, bos and eos; and a run keeps its chat template."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from chainrule import run
from chainrule.cli import main
from chainrule.errors import UserError
from chainrule.formats.hugging_face_import import find_chat_template
from chainrule.models import build, model_class
from chainrule.recipe import Text, make_recipe
from chainrule.serve.server import stamp_of
from chainrule.text.tokenizers.pretrained import HARD
from chainrule.text.tokenizers.tokenizer import Tokenizer, train_tokenizer

TEXT = "the cow jumps over the moon.\nthe moon is out."
TEMPLATE = "{% for message in messages %}\r\n{{ message.content }}{% endfor %}"


def saved(path: Path, unit: str, **more: str | None) -> run.Run:
    units = train_tokenizer(Text(tokenizer=unit, min_count=1), [TEXT])
    recipe = make_recipe("gpt", model_class("gpt"), {
        "text.tokenizer": unit, "model.layers": 1, "model.width": 8, "model.heads": 1, "model.context": 24,
    })  # fmt: skip
    run.save(path, build("gpt", recipe.model, len(units)), units, recipe, **more)
    return run.load(path)


@pytest.mark.parametrize("unit", ["bytes", "characters", "words", "bpe"])
def test_the_ids_are_ours_and_the_boundary_is_bos_and_eos(unit: str, tmp_path: Path) -> None:
    ours = saved(tmp_path / "run", unit).tokenizer
    theirs = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.model_max_length) == (0, 0, 24)
    assert len(theirs) == len(ours)
    texts = [text.rstrip("\n") for text in (TEXT, "", *HARD)] if unit == "words" else [TEXT, "", "\n", *HARD]
    for text in texts:
        assert theirs(text)["input_ids"] == ours.encode(text).tolist()
        if unit != "words":
            assert theirs.decode(theirs(text)["input_ids"]) == text
    assert theirs.encode(theirs.eos_token) == [0]
    if unit != "words":
        spelled = f"a{theirs.eos_token}b"
        assert theirs(spelled, split_special_tokens=True)["input_ids"] == ours.encode(spelled).tolist()


def test_a_closed_alphabet_has_no_boundary(tmp_path: Path) -> None:
    ours = saved(tmp_path / "run", "symbols").tokenizer
    theirs = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert (theirs.bos_token, theirs.eos_token) == (None, None)
    assert theirs(TEXT)["input_ids"] == ours.encode(TEXT).tolist()
    assert theirs.decode(theirs(TEXT)["input_ids"]) == TEXT


def test_a_pretrained_tokenizer_too(tmp_path: Path) -> None:
    spec = json.loads(train_tokenizer(Text(tokenizer="bpe"), [TEXT * 9])._file)
    vocab = {"Ā Ā": 0, **{name: id for name, id in spec["model"]["vocab"].items() if id}}
    spec["model"]["vocab"] = vocab
    spec["added_tokens"] = [{"id": len(vocab), "content": "</s>", "single_word": False, "lstrip": False,
                             "rstrip": False, "normalized": False, "special": True}]  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    saved(tmp_path / "run", str(tmp_path / "tokenizer.json"))
    ours, theirs = Tokenizer.load(tmp_path / "run/tokenizer.json"), AutoTokenizer.from_pretrained(tmp_path / "run")
    assert ours.unit == "pretrained"
    assert (theirs.bos_token, theirs.bos_token_id, theirs.eos_token_id) == ("</s>", 0, 0)
    assert theirs(TEXT)["input_ids"] == ours.encode(TEXT).tolist()


def test_a_run_without_the_file_still_loads(tmp_path: Path) -> None:
    saved(tmp_path / "run", "bytes")
    (tmp_path / "run/tokenizer_config.json").unlink()
    assert run.load(tmp_path / "run").chat_template is None


def test_the_chat_template_is_kept_and_verified(tmp_path: Path) -> None:
    made = saved(tmp_path / "run", "bytes", chat_template=TEMPLATE)
    assert made.chat_template == TEMPLATE
    assert AutoTokenizer.from_pretrained(made.path).chat_template.splitlines() == TEMPLATE.splitlines()
    before, file = stamp_of(made.path), made.path / run.CHAT_TEMPLATE
    file.write_text("{{ other }}")
    assert stamp_of(made.path) != before
    with pytest.raises(UserError, match=r"chat_template.jinja is damaged"):
        run.load(made.path)
    file.unlink()
    with pytest.raises(UserError, match=r"is incomplete: chat_template.jinja is missing"):
        run.load(made.path)
    saved(tmp_path / "run", "bytes", chat_template=TEMPLATE)
    assert saved(tmp_path / "run", "bytes").chat_template is None    # the earlier run's is gone
    assert not file.exists()


@pytest.mark.parametrize("more", [[], ["train.lora=2"]])
def test_a_run_that_is_trained_further_keeps_it(more: list[str], tmp_path: Path) -> None:
    base, text = tmp_path / "base", tmp_path / "text.txt"
    saved(base, "bytes", chat_template=TEMPLATE)
    text.write_text(TEXT * 20)
    words = ["train", str(text), "--from", str(base), "--out", str(tmp_path / "tuned"), "train.steps=1",
             "train.tokens=32", "train.length=16", "--device", "cpu", *more]  # fmt: skip
    assert main(words) == 0
    assert run.load(tmp_path / "tuned").chat_template == TEMPLATE
    if more:
        run.merged(tmp_path / "tuned", tmp_path / "merged")
        assert run.load(tmp_path / "merged").chat_template == TEMPLATE


@pytest.mark.parametrize(("files", "found"), [
    ({"chat_template.jinja": "a", "tokenizer_config.json": '{"chat_template": "b"}'}, "a"),
    ({"tokenizer_config.json": '{"chat_template": "b"}'}, "b"),
    ({"tokenizer_config.json": '{"chat_template": [{"name": "tool_use", "template": "c"}, '
                               '{"name": "default", "template": "d"}]}'}, "d"),
    ({"tokenizer_config.json": "{}"}, None),
    ({}, None),
    ({"chat_template.jinja": "{% generation %}x{% endgeneration %}{% for a in b %}{% break %}{% endfor %}"},
     "{% generation %}x{% endgeneration %}{% for a in b %}{% break %}{% endfor %}"),
])  # fmt: skip
def test_where_the_template_of_a_folder_is(files: dict[str, str], found: str | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert find_chat_template(tmp_path) == found


@pytest.mark.parametrize(("files", "line"), [
    ({"chat_template.jinja": "a\n{% for x in %}"}, r"\.jinja: the chat template does not parse: line 2"),
    ({"tokenizer_config.json": '{"chat_template": "{{ a"}'}, r"config\.json: the chat template does not parse: line 1"),
    ({"tokenizer_config.json": '{"chat_template": 7}'}, r"config\.json has a chat_template that is not a text"),
    ({"tokenizer_config.json": '{"chat_'}, r"tokenizer_config\.json cannot be read"),
])  # fmt: skip
def test_a_template_that_cannot_be_read_is_refused(files: dict[str, str], line: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=line) as error:
        find_chat_template(tmp_path)
    assert "\n" not in str(error.value)
