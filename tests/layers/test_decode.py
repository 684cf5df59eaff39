"""A step of one token by kernels: the same answer as any other step, and taken only where there are kernels for it."""

import math
import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from contract.kernels_in_torch import stand_in
from contract.moved import moved
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.testing import assert_close

from chainrule import kernels
from chainrule.errors import UserError
from chainrule.inference.sampling import Sampling, sample_token
from chainrule.layers import decode
from chainrule.layers.kv_cache import Cache
from chainrule.model import join, pick, watch
from chainrule.models.gpt import GPT, GPTSettings

VOCAB = 70
SMALL: dict[str, Any] = {"layers": 2, "width": 48, "heads": 2, "head_size": 32, "context": 80, "zero_init": False}
LAYER = {"norm": "layer", "norm_scale": True, "biases": True}
CHOICES: list[dict[str, Any]] = [
    {"positions": "rotary"},
    {"positions": "learned", "qk_norm": False, "activation": "gelu-tanh", **LAYER},
    {"positions": "sinusoidal", "kv_heads": 1, "activation": "swiglu", "window": 9, "logit_softcap": 3, **LAYER},
    {"positions": "none", "norm_embedding": False, "norm_scale": True, "biases": True, "activation": "gelu",
     "tied": True},
]
INTERPRETED = Path(__file__).parents[1] / "kernels" / "interpreted_kernels.py"


def made(**settings: Any) -> GPT:
    torch.manual_seed(1)
    model = GPT(GPTSettings(**{**SMALL, **settings}), VOCAB).eval()
    return moved(model, 0.05)


@torch.no_grad()
def begun(model: GPT, rows: int) -> Cache:
    """Texts of many lengths, the first as short as can be."""
    texts = [torch.randint(VOCAB, (1, 1 + 7 * row)) for row in range(rows)]
    return model.reserve(join([model.step(text, model.start(1))[1] for text in texts]), 8)


@torch.no_grad()
def both_ways(model: GPT, rows: int, turns: int = 3) -> None:
    state = begun(model, rows)
    beside = pick(state, torch.arange(rows))
    for _ in range(turns):
        column = torch.randint(VOCAB, (rows, 1))
        assert decode.suits(model, column, beside)
        logits, state = model.step(column, state)
        quick, beside = decode.step(model, column, beside)
        assert_close(quick, logits, atol=2e-5, rtol=1e-4)
        assert_close(beside, state, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 4, 9], ids="{} rows".format)
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_a_step_by_kernels_is_a_step(choice: dict[str, Any], rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    both_ways(made(**choice), rows)


def triton_version() -> tuple[int, ...]:
    return tuple(map(int, version("triton").split(".")[:2])) if find_spec("triton") else ()


def test_a_full_cache_is_given_room_and_a_full_context_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    model = made(context=66)
    with torch.no_grad():
        _, state = model.step(torch.zeros(1, 64, dtype=torch.long), model.start(1))
        for room in (66, 66):
            _, state = decode.step(model, torch.zeros(1, 1, dtype=torch.long), state)
            assert state["keys"].shape[3] == room
        with pytest.raises(UserError, match=r"67 tokens is longer than model\.context=66"):
            decode.step(model, torch.zeros(1, 1, dtype=torch.long), state)


@pytest.mark.skipif(not triton_version(), reason="Triton is not installed; it comes with torch for CUDA")
@pytest.mark.skipif(() < triton_version() < (3, 7), reason="its interpreter cannot read NumPy 2.4's numbers")
def test_kernels_say_in_tritons_interpreter_what_torch_says() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning"]
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    run = subprocess.run(
        [*command, str(INTERPRETED)], capture_output=True, text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr


def test_kernels_are_for_the_models_they_were_written_for() -> None:
    def suits(model: GPT, tokens: int = 1, state: Cache | None = None) -> bool:
        return decode.suits(model, torch.zeros(2, tokens, dtype=torch.long), state or begun(model, 2))

    assert suits(made())
    assert not suits(made(), tokens=2)
    assert not suits(made(), state=made().start(2))                           # which has no room yet
    assert not suits(made().train())
    assert not suits(made(positions="relative"))
    assert not suits(made(norm_first=False))
    assert not suits(made(head_size=24))
    assert not suits(made().double())                                         # kernels reckon in float32
    model = made()
    with watch(model, "stack.blocks.1.feed_forward.neurons"):
        assert not suits(model)
    assert suits(model)


def test_a_part_that_was_exchanged_is_not_overlooked() -> None:
    class Louder(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model = made()
    state = begun(model, 2)
    block: Any = model.stack.blocks[0]
    block.feed_forward.out = Louder(model.settings.hidden, model.settings.width)
    assert not decode.suits(model, torch.zeros(2, 1, dtype=torch.long), state)


def test_a_part_in_another_precision_is_not_overlooked() -> None:
    model, column = made(norm_scale=True), torch.zeros(2, 1, dtype=torch.long)
    state = begun(model, 2)
    assert decode.suits(model, column, state)
    model.stack.norm.half()
    assert not decode.suits(model, column, state)


@pytest.mark.parametrize("vocab", [1, 63, 64, 65, 200])
def test_words_in_two_products_are_all_the_words(vocab: int) -> None:
    hidden, words = torch.randn(5, 16), torch.randn(vocab, 16)
    logits = decode.compared(hidden, words)
    assert_close(logits, linear(hidden, words))
    assert logits.stride(0) % decode.ALIGNED == 0


@pytest.mark.parametrize(("rows", "heads", "splits"), [(1, 12, 8), (2, 12, 4), (8, 12, 1), (1, 1, 8), (200, 96, 1)])
def test_few_heads_are_split_until_there_is_work_for_all(rows: int, heads: int, splits: int) -> None:
    assert decode._splits(rows, heads) == splits


# When they are taken


def test_kernels_are_used_only_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    there: Any = SimpleNamespace(is_cuda=True, device=torch.device("cuda"), get_device=lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with torch.no_grad():
        assert not kernels.use_in_decoding(there)
        with kernels.in_decoding(True):
            assert kernels.use_in_decoding(there)
            assert not kernels.use_in_decoding(torch.zeros(1))
            with kernels.in_decoding(False):
                assert not kernels.use_in_decoding(there)
            with torch.enable_grad():
                assert not kernels.use_in_decoding(there)
            with torch.autocast("cuda", torch.bfloat16) if torch.cuda.is_available() else kernels.in_decoding(False):
                assert not kernels.use_in_decoding(there)
            there.get_device = lambda: 1                                      # Triton would launch on the other
            assert not kernels.use_in_decoding(there)
        assert not kernels.use_in_decoding(there)


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(kernels, "_loaded", False)
    monkeypatch.setattr(kernels, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    _trial(monkeypatch, True)
    kernels.available.cache_clear()
    yield monkeypatch
    kernels.available.cache_clear()


def _trial(patch: pytest.MonkeyPatch, success: bool) -> None:
    module: Any = SimpleNamespace(succeeds=lambda: success)
    patch.setitem(sys.modules, "chainrule.kernels.probe", module)
    patch.setattr(kernels, "trial", module, raising=False)


def test_kernels_once_loaded_are_repaid_sooner(on_a_gpu: pytest.MonkeyPatch) -> None:
    assert not kernels.worthwhile(kernels.STEPS_TO_LOAD - 1)
    assert kernels.worthwhile(kernels.STEPS_TO_LOAD)
    assert kernels.worthwhile(kernels.STEPS_ONCE_LOADED)
    assert not kernels.worthwhile(kernels.STEPS_ONCE_LOADED - 1)


def test_kernels_that_cannot_work_are_not_tried_again(on_a_gpu: pytest.MonkeyPatch) -> None:
    _trial(on_a_gpu, False)
    assert not kernels.worthwhile(10_000)
    assert not kernels.worthwhile(kernels.STEPS_ONCE_LOADED)


@pytest.mark.parametrize("lack", ["triton", "cuda", "capability"])
def test_without_what_they_need_there_are_no_kernels(lack: str, on_a_gpu: pytest.MonkeyPatch) -> None:
    if lack == "triton":
        on_a_gpu.setattr(kernels, "find_spec", lambda name: None)
    elif lack == "cuda":
        on_a_gpu.setattr(torch.version, "cuda", None)
    else:
        on_a_gpu.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert not kernels.worthwhile(10_000)


def test_kernels_overlap_where_the_gpu_can(on_a_gpu: pytest.MonkeyPatch) -> None:
    assert kernels.launch_options() == {"OVERLAP": False}
    on_a_gpu.setattr(kernels, "OVERLAP", True)
    assert kernels.launch_options() == {"OVERLAP": True, "launch_pdl": True}
    on_a_gpu.setattr(torch.cuda, "get_device_capability", lambda: (8, 9))
    assert kernels.launch_options() == {"OVERLAP": False}


def test_a_die_without_cuts_is_rolled_by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    module, rolled = ModuleType("chainrule.kernels.draw"), []
    module.draw_tokens = lambda *given: rolled.append(given) or given    # type: ignore[attr-defined, func-returns-value]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(kernels, "die", module, raising=False)
    monkeypatch.setattr(kernels, "use_in_decoding", lambda tensor: True)
    logits, uniform, seen = torch.zeros(2, 5), torch.full((2,), 0.5), torch.zeros(2, 5, dtype=torch.bool)
    for other in (Sampling(0), Sampling(math.inf), Sampling(top_k=2), Sampling(top_p=0.5), Sampling(min_p=0.1)):
        sample_token(logits, other, uniform)
    assert not rolled
    sample_token(logits, Sampling(0.7, repetition_penalty=1.5), uniform, seen)
    assert rolled == [(logits, uniform, 0.7, seen, 1.5)]
