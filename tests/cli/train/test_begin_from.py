"""`chainrule train … --from RUN`: from the command line to a run that answers."""

import json

import pytest
from safetensors.torch import load_file

SMALL = ("model.layers=2", "model.width=16", "model.heads=2", "model.context=16")
QUICK = ("train.steps=3", "train.evaluate=0")
CLASSIFY = ("--task", "classify", "--from", "runs/book")


@pytest.fixture
def base(chainrule, tmp_path):
    """A pretrained run, and examples of a task beside it."""
    (tmp_path / "book.txt").write_text("the cat saw the dog\na dog and a cat ran\n" * 60)
    rows = [("the cat ran", "cat"), ("a dog ran", "dog"), ("the dog saw a dog", "dog"), ("a cat and a cat", "cat")]
    (tmp_path / "pets.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{pet}\n" for text, pet in rows * 5))
    answer = chainrule("train", "book.txt", "--kind", "gpt", *SMALL, *QUICK, "text.tokenizer=words", "--out=runs/book")
    assert answer.code == 0, answer.err
    return tmp_path


def test_a_run_is_fine_tuned_without_naming_its_kind(chainrule, base):
    answer = chainrule("train", "pets.tsv", *CLASSIFY, *QUICK, "--out", "runs/pets", "train.freeze=1",
                       "train.body_lr=0.1", "train.layer_decay=0.9", "--json")
    assert answer.code == 0, answer.err
    assert answer.json["accuracy"] is not None
    recipe = json.loads((base / "runs/pets/recipe.json").read_text())
    there = json.loads((base / "runs/book/recipe.json").read_text())
    assert (recipe["kind"], recipe["task"]) == ("gpt", "classify")
    assert recipe["base"] == {"path": str(base / "runs/book"), "sha256": there["files"]["model.safetensors"]["sha256"]}
    assert recipe["train"]["freeze"] == ["1"]
    again = chainrule("train", "pets.tsv", *CLASSIFY, *QUICK, "--out", "runs/pets", "train.freeze=1",
                      "train.body_lr=0.1", "train.layer_decay=0.9")
    assert "exists already" in again.err
    predicted = chainrule("predict", "runs/pets", "book.txt")
    assert set(predicted.out.split()) <= {"cat", "dog"}


def test_the_recipe_file_may_say_where_to_begin(chainrule, base):
    begin = 'task = "classify"\nfrom = "runs/book"\n'
    (base / "tune.toml").write_text(begin + "[train]\nsteps = 2\nfreeze = 1\nevaluate = 0\n")
    answer = chainrule("train", "pets.tsv", "--recipe", "tune.toml", "--out", "runs/pets")
    assert answer.code == 0, answer.err
    assert "weights taken" in answer.err


def test_adapters_are_merged_into_a_run_of_its_own(chainrule, base):
    answer = chainrule("train", "pets.tsv", *CLASSIFY, *QUICK, "train.lora=2", "train.lr=0.01", "--out", "runs/pets")
    assert answer.code == 0, answer.err
    assert "adapters of rank 2 on 8 matrices" in answer.err
    merged = chainrule("export", "runs/pets", "runs/whole", "--to", "merged", "--json")
    assert merged.json["bytes"] == (base / "runs/whole/model.safetensors").stat().st_size
    answers = [chainrule("predict", name, "book.txt", "--json").json["answers"] for name in ("runs/pets", "runs/whole")]
    assert answers[0] == answers[1]
    (base / "runs/book").rename(base / "runs/moved")
    assert chainrule("predict", "runs/whole", "book.txt").code == 0
    gone = chainrule("predict", "runs/pets", "book.txt")
    assert (gone.code, len(gone.err.splitlines())) == (2, 1)
    assert "runs/book" in gone.err


def test_the_text_itself_can_be_learned_beside_its_class(chainrule, base):
    """head.auxiliary, as GPT of 2018 had it: the output over words learns only by it."""
    for name, given in (("alone", ()), ("beside", ("head.auxiliary=0.5",))):
        answer = chainrule("train", "pets.tsv", *CLASSIFY, *QUICK, *given, "--out", f"runs/{name}")
        assert answer.code == 0, answer.err
    output = {name: load_file(f"runs/{name}/model.safetensors")["body.output.weight"] for name in ("alone", "beside")}
    before = load_file("runs/book/model.safetensors")["output.weight"]
    assert output["alone"][: len(before)].equal(before)
    assert not output["beside"][: len(before)].equal(before)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*CLASSIFY, "--kind", "lstm"), "its kind is gpt, and --kind lstm has another body"),
        ((*CLASSIFY, "model.width=32"), "model.width is 16 there and 32 here"),
        ((*CLASSIFY, "text.tokenizer=bytes"), "text.tokenizer is words there and bytes here"),
        ((*CLASSIFY, "train.freeze=embeding"), "Did you mean embedding?"),
        ((*CLASSIFY, "train.freeze=7"), "the body has 2 layers"),
        (("--task", "classify", "--from", "runs/none"), "there is no run at runs/none"),
        (("--task", "classify", "--from", "pets.tsv"), "pets.tsv is a file"),
        (("--task", "classify", "--kind", "gpt", "train.lora=4"), "--from RUN says which"),
        (("--task", "classify", "--kind", "encoder", "head.auxiliary=1"), "reads all of it"),
        (("--task", "lm", "--from", "runs/book", "train.body_lr=0.1"), "--task lm has none"),
        (("--task", "lm", "--from", "runs/book", "--out", "runs/book"), "would be written to"),
    ],
)
def test_mistakes_are_one_line(chainrule, base, words, says):
    answer = chainrule("train", "pets.tsv", *words)
    assert answer.code == 2, answer
    assert says in answer.err.splitlines()[-1]
    assert sum(line.startswith("chainrule: ") for line in answer.err.splitlines()) == 1


@pytest.mark.parametrize("more", [(), ("train.lora=2",)])
def test_the_distance_of_fine_tuned_weights_is_said(chainrule, complaint, base, more):
    answer = chainrule("train", "pets.tsv", *CLASSIFY, *QUICK, "train.lr=0.01", *more, "--out", "runs/pets")
    assert "the body moved by " in answer.err
    found = chainrule("distance", "runs/pets", "--json").json["layers"]
    assert [one["name"] for one in found] == ["embeddings", "layer 1", "layer 2", "above the layers", "all"]
    assert 0 < found[-1]["distance"] < found[-1]["from_random"]
    record = [json.loads(line) for line in (base / "runs/pets/log.jsonl").read_text().splitlines()]
    (logged,) = [line for line in record if line["event"] == "distance"]
    assert logged["distance"] == pytest.approx(found[-1]["distance"])
    printed = chainrule("distance", "runs/pets").out.splitlines()
    assert [line.split()[0] for line in printed] == ["parameters", "embeddings", "layer", "layer", "above", "all"]
    assert chainrule("distance", "runs/book", "runs/book", "--json").json["layers"][-1]["distance"] == 0
    assert "was not trained --from another run" in complaint("distance", "runs/book")
