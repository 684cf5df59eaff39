"""Fine-tuning on a GPU: adapters give the same bits there, and go through graphs, autocast and cuDNN."""

import pytest
import torch
from training import topics
from training.small import assert_same_bits
from training.topics import weights

from chainrule import run
from chainrule.layers.lora import add_low_rank, merged_state_dict
from chainrule.training.finetune import finetune_recipe
from chainrule.training.pipeline import make_run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("topics")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CHAINRULE_CACHE", str(folder / ".cache"))
        topics.write_data(folder)
        for kind in ("gpt", "gru"):
            topics.pretrain(folder, kind, 20)
        yield folder


def test_the_sum_has_the_same_bits_on_both_devices():
    torch.manual_seed(1)
    weight, up, down = torch.randn(96, 130), torch.randn(96, 8), torch.randn(8, 130)
    there = add_low_rank(weight.cuda(), up.cuda(), down.cuda(), 0.3)
    assert torch.equal(there.cpu(), add_low_rank(weight, up, down, 0.3))


@pytest.mark.filterwarnings("ignore")    # torch.compile has its own
@pytest.mark.parametrize(("kind", "given"), [
    ("gpt", {}), ("gpt", {"train.graph": "true"}), ("gpt", {"train.compile": "true"}),
    ("gru", {}), ("gru", {"train.graph": "true"}),    # compiling is of no use to recurrent kinds
], ids=str)
def test_a_loaded_run_has_the_very_weights_that_were_used(desk, monkeypatch, kind, given):
    seen, save = {}, run.save

    def spy(path, model, *words, **more):
        seen.update({name: tensor.cpu() for name, tensor in merged_state_dict(model).items()})
        save(path, model, *words, **more)

    monkeypatch.setattr(run, "save", spy)
    settings = {"train.steps": 40, "train.lora": 2, "train.lr": 0.01, "train.tokens": 64, "train.precision": "bfloat16"}
    recipe = finetune_recipe(desk / kind, settings | given, "classify")
    out = desk / f"{kind}-{len(given)}-{'-'.join(given)}"
    made = make_run([str(desk / "few.tsv")], recipe, out, valid=[str(desk / "others.tsv")], device="cuda")
    assert made.finished
    assert_same_bits(seen, weights(out))
    assert any(not torch.equal(seen[f"body.{name}"][: len(part)], part) for name, part in weights(desk / kind).items())


def test_what_is_frozen_does_not_move_in_a_graph_either(desk):
    before = weights(desk / "gpt")
    recipe = finetune_recipe(desk / "gpt", {"train.steps": 40, "train.freeze": "1", "train.body_lr": 0.5,
                                      "train.tokens": 64, "train.graph": "true"}, "classify")
    make_run([str(desk / "few.tsv")], recipe, desk / "frozen", device="cuda")
    after = weights(desk / "frozen")
    assert torch.equal(after["body.embedding.tokens.weight"][:-2], before["embedding.tokens.weight"])
    for name, part in before.items():
        if name.startswith("stack.blocks."):
            assert torch.equal(after[f"body.{name}"], part) == name.startswith("stack.blocks.0."), name
