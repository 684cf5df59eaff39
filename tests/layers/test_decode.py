"""Decoding by kernels: a step of one token gives what any other step gives, and is used only where it is supported."""

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
from chainrule.layers.lora import LoRA, add_parametrization
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
    {"attention": ("local", "sliding", "full"), "layers": 3, "block": 8, "window": 5},
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
def compare_steps(model: GPT, rows: int, steps: int = 3) -> None:
    state = begun(model, rows)
    beside = pick(state, torch.arange(rows))
    for _ in range(steps):
        column = torch.randint(VOCAB, (rows, 1))
        assert decode.supports(model, column, beside)
        logits, state = model.step(column, state)
        fast, beside = decode.step(model, column, beside)
        assert_close(fast, logits, atol=2e-5, rtol=1e-4)
        assert_close(beside, state, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 4, 9], ids="{} rows".format)
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_a_step_by_kernels_is_a_step(choice: dict[str, Any], rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    compare_steps(made(**choice), rows)


def triton_version() -> tuple[int, ...]:
    return tuple(map(int, version("triton").split(".")[:2])) if find_spec("triton") else ()


def test_a_full_cache_grows_and_a_full_context_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    model = made(context=66)
    with torch.no_grad():
        _, state = model.step(torch.zeros(1, 64, dtype=torch.long), model.start(1))
        for capacity in (66, 66):
            _, state = decode.step(model, torch.zeros(1, 1, dtype=torch.long), state)
            assert state["keys"].shape[3] == capacity
        with pytest.raises(UserError, match=r"67 tokens is longer than model\.context=66"):
            decode.step(model, torch.zeros(1, 1, dtype=torch.long), state)


@pytest.mark.skipif(not triton_version(), reason="Triton is not installed; it comes with torch for CUDA")
@pytest.mark.skipif(() < triton_version() < (3, 7), reason="its interpreter cannot read NumPy 2.4's numbers")
def test_kernels_compute_in_tritons_interpreter_what_torch_computes() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning"]
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    run = subprocess.run(
        [*command, str(INTERPRETED)], capture_output=True, text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr


def test_kernels_are_for_the_models_they_were_written_for() -> None:
    def supports(model: GPT, tokens: int = 1, state: Cache | None = None) -> bool:
        return decode.supports(model, torch.zeros(2, tokens, dtype=torch.long), state or begun(model, 2))

    assert supports(made())
    assert not supports(made(), tokens=2)
    assert not supports(made(), state=made().start(2))                           # which has no capacity yet
    assert not supports(made().train())
    assert not supports(made(positions="relative"))
    assert not supports(made(norm_first=False))
    assert not supports(made(head_size=24))
    assert not supports(made().double())                                         # kernels compute in float32
    model = made()
    with watch(model, "stack.blocks.1.feed_forward.neurons"):
        assert not supports(model)
    assert supports(model)


def test_a_replaced_module_is_noticed() -> None:
    class Louder(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model = made()
    state = begun(model, 2)
    block: Any = model.stack.blocks[0]
    block.feed_forward.out = Louder(model.settings.hidden, model.settings.width)
    assert not decode.supports(model, torch.zeros(2, 1, dtype=torch.long), state)


def test_a_module_in_another_dtype_is_noticed() -> None:
    model, column = made(norm_scale=True), torch.zeros(2, 1, dtype=torch.long)
    state = begun(model, 2)
    assert decode.supports(model, column, state)
    model.stack.norm.half()
    assert not decode.supports(model, column, state)


@pytest.mark.parametrize("vocab", [1, 63, 64, 65, 200])
def test_logits_in_two_products_are_all_the_logits(vocab: int) -> None:
    hidden, matrix = torch.randn(5, 16), torch.randn(vocab, 16)
    logits = decode.aligned_logits(hidden, matrix)
    assert_close(logits, linear(hidden, matrix))
    assert logits.stride(0) % decode.VOCAB_MULTIPLE == 0


@pytest.mark.parametrize(("rows", "heads", "splits"), [(1, 12, 8), (2, 12, 4), (8, 12, 1), (1, 1, 8), (200, 96, 1)])
def test_few_heads_are_split_until_all_processors_are_busy(rows: int, heads: int, splits: int) -> None:
    assert decode._splits(rows, heads) == splits


# When kernels are used


def test_kernels_are_used_only_where_decoding_is_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
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
    _probe(monkeypatch, True)
    kernels.available.cache_clear()
    yield monkeypatch
    kernels.available.cache_clear()


def _probe(patch: pytest.MonkeyPatch, success: bool) -> None:
    module: Any = SimpleNamespace(succeeds=lambda: success)
    patch.setitem(sys.modules, "chainrule.kernels.probe", module)
    patch.setattr(kernels, "probe", module, raising=False)


def test_loaded_kernels_pay_off_after_fewer_steps(on_a_gpu: pytest.MonkeyPatch) -> None:
    assert not kernels.worthwhile(kernels.STEPS_TO_LOAD - 1)
    assert kernels.worthwhile(kernels.STEPS_TO_LOAD)
    assert kernels.worthwhile(kernels.STEPS_ONCE_LOADED)
    assert not kernels.worthwhile(kernels.STEPS_ONCE_LOADED - 1)


def test_kernels_that_do_not_run_are_not_tried_again(on_a_gpu: pytest.MonkeyPatch) -> None:
    _probe(on_a_gpu, False)
    assert not kernels.worthwhile(10_000)
    assert not kernels.worthwhile(kernels.STEPS_ONCE_LOADED)


@pytest.mark.parametrize("lack", ["triton", "cuda", "capability"])
def test_without_triton_or_a_new_gpu_there_are_no_kernels(lack: str, on_a_gpu: pytest.MonkeyPatch) -> None:
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


def test_sampling_without_truncation_is_done_by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    module, drawn = ModuleType("chainrule.kernels.draw"), []
    module.draw_tokens = lambda *given: drawn.append(given) or given    # type: ignore[attr-defined, func-returns-value]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(kernels, "draw", module, raising=False)
    monkeypatch.setattr(kernels, "use_in_decoding", lambda tensor: True)
    logits, uniform, seen = torch.zeros(2, 5), torch.full((2,), 0.5), torch.zeros(2, 5, dtype=torch.bool)
    for other in (Sampling(0), Sampling(math.inf), Sampling(top_k=2), Sampling(top_p=0.5), Sampling(min_p=0.1)):
        sample_token(logits, other, uniform)
    assert not drawn
    sample_token(logits, Sampling(0.7, repetition_penalty=1.5), uniform, seen)
    assert drawn == [(logits, uniform, 0.7, seen, 1.5)]


# On a CPU

CPU_CHOICES = [
    *({**choice, "attention": ("full",), "window": None, "block": None} for choice in CHOICES),
    {"activation": "swiglu", "kv_heads": 1, "qk_norm": False, "norm_scale": True, "norm_embedding": False},    # Llama's
    {"rope_scaling": "yarn", "rope_factor": 2, "scaled": False, "norm_scale": True, "logit_softcap": 5},
]


@torch.no_grad()
def general_step(model: GPT, column: Tensor, state: Cache) -> tuple[Tensor, Cache]:
    """A step by the modules themselves, which a prefill uses too."""
    hidden, state = model.read(column, state)
    return model.logits(hidden), state


@pytest.mark.parametrize("rows", [1, 4], ids="{} rows".format)
@pytest.mark.parametrize("choice", CPU_CHOICES, ids=str)
def test_a_step_on_a_cpu_is_a_step(choice: dict[str, Any], rows: int) -> None:
    model = made(**choice)
    state = begun(model, rows)
    beside = pick(state, torch.arange(rows))
    for _ in range(3):
        column = torch.randint(VOCAB, (rows, 1))
        logits, state = general_step(model, column, state)
        with torch.no_grad():
            assert decode.supports_cpu(model, column, beside)
            fast, beside = model.step(column, beside)
        assert_close(fast, logits, atol=1e-5 * float(logits.abs().max()), rtol=0)
        assert_close(beside, state, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_row_on_a_cpu_gets_the_same_bits_whatever_the_others_hold() -> None:
    model = made(positions="rotary", kv_heads=1)
    state, column = begun(model, 4), torch.randint(VOCAB, (4, 1))
    others = {name: tensor.clone() for name, tensor in state.items()}
    others["keys"][1:], others["length"][1:] = 3.0, 20
    logits, _ = model.step(column, state)
    again, _ = model.step(torch.cat([column[:1], 1 + column[1:] % 9]), others)
    assert torch.equal(logits[0], again[0])
    assert not torch.equal(logits[1], again[1])


@torch.no_grad()
def test_a_step_on_a_cpu_grows_the_cache_and_refuses_a_full_context() -> None:
    model = made(context=66)
    _, state = model.step(torch.zeros(1, 64, dtype=torch.long), model.start(1))
    for _ in range(2):
        _, state = model.step(torch.zeros(1, 1, dtype=torch.long), state)
    assert state["keys"].shape[3] == 66
    with pytest.raises(UserError, match=r"67 tokens is longer than model\.context=66"):
        model.step(torch.zeros(1, 1, dtype=torch.long), state)


def test_the_step_on_a_cpu_is_for_the_models_it_was_written_for() -> None:
    def supports(model: GPT, tokens: int = 1, state: Cache | None = None) -> bool:
        return decode.supports_cpu(model, torch.zeros(2, tokens, dtype=torch.long), state or begun(model, 2))

    assert not supports(made())                                                  # gradients are wanted
    with torch.no_grad():
        assert supports(made())
        assert not supports(made(), tokens=2)
        assert not supports(made(), state=made().start(2))                       # which has no capacity yet
        assert not supports(made().train())
        assert not supports(made(positions="alibi"))
        assert not supports(made(norm_first=False))
        assert not supports(made(window=4))
        assert not supports(made(experts=2))
        assert not supports(made().double())
        model = made()
        with watch(model, "stack.blocks.1.attention.pattern"):
            assert not supports(model)
        with torch.autocast("cpu", torch.bfloat16):
            assert not supports(model)
        assert supports(model)


@torch.no_grad()
def test_a_step_on_a_cpu_adds_low_rank_matrices() -> None:
    model = made(activation="swiglu")
    for name in ("attention.project", "attention.out", "feed_forward.up", "feed_forward.out"):
        weight = model.get_parameter(f"stack.blocks.1.{name}.weight")
        added = LoRA(weight, 2, 1.0)
        added.up.normal_()
        add_parametrization(model, f"stack.blocks.1.{name}.weight", added)
    state, column = begun(model, 1), torch.randint(VOCAB, (1, 1))
    beside = pick(state, torch.arange(1))
    fast, general = model.step(column, state)[0], general_step(model, column, beside)[0]
    assert_close(fast, general, atol=1e-5 * float(general.abs().max()), rtol=0)
