"""Small pretrained runs, and a way to tune them."""

import numpy as np
import pytest
import torch
from preferences.animals import QUICK, SMALL, pairs, sentence, write_lines

from chainrule.training.finetune import finetune_recipe
from chainrule.training.pipeline import make_run, recipe_for


@pytest.fixture(scope="session")
def bases(tmp_path_factory):
    """A folder with a text, pairs, and a pretrained run of each small kind."""
    folder, generator = tmp_path_factory.mktemp("preferences"), np.random.default_rng(1)
    (folder / "text.txt").write_text("\n".join(sentence(generator) for _ in range(300)))
    write_lines(folder / "pairs.jsonl", pairs(24))
    write_lines(folder / "held.jsonl", pairs(8, 2))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CHAINRULE_CACHE", str(folder / ".cache"))
        for kind, model in SMALL.items():
            given = {"text.tokenizer": "characters", "train.steps": 20, "train.lr": 1e-2, **QUICK, **model}
            make_run([str(folder / "text.txt")], recipe_for(kind, given), folder / kind)
    return folder


@pytest.fixture
def tune(bases, tmp_path, monkeypatch):
    """Tunes a base on a file; settings with _ in the place of their first dot."""
    monkeypatch.setenv("CHAINRULE_CACHE", str(bases / ".cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def tune(out="tuned", base="gpt", task="preference", text="pairs.jsonl", valid="held.jsonl", **given):
        dotted = {name.replace("_", ".", 1): value for name, value in given.items()}
        recipe = finetune_recipe(bases / base, {"train.steps": 4, "train.lr": 3e-3, **QUICK, **dotted}, task)
        held = [str(bases / valid)] if valid else []
        return make_run([str(bases / text)], recipe, tmp_path / out, valid=held).path

    yield tune
    torch.set_num_threads(threads)
