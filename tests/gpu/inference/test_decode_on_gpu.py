"""Decoding by kernels on a GPU: each kernel against plain torch, and samples that do not change."""

import math

import numpy as np
import pytest
import torch
from contract import kernels_in_torch as reference
from contract.moved import moved
from torch.testing import assert_close

from chainrule import kernels
from chainrule.inference import decoding
from chainrule.inference.generate import sample
from chainrule.inference.sampling import Sampling, sample_token
from chainrule.layers import decode
from chainrule.layers.positions import rope_tables
from chainrule.model import join, pick
from chainrule.models import build
from chainrule.models.gpt import GPT, GPTSettings
from chainrule.training.pipeline import recipe_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.skipif(not (torch.cuda.is_available() and kernels.available()), reason="kernels do not compile here"),
]
VOCAB = 1000
SMALL = {"layers": 2, "width": 192, "heads": 3, "head_size": 64, "context": 640, "zero_init": False}
LAYER = {"norm": "layer", "norm_scale": True, "biases": True}
CHOICES = [
    {"positions": "rotary"},
    {"positions": "rotary", "head_size": 128, "norm_scale": True},
    {"positions": "learned", "qk_norm": False, "activation": "gelu-tanh", **LAYER},
    {"positions": "sinusoidal", "kv_heads": 1, "activation": "swiglu", "window": 9, "logit_softcap": 3, **LAYER},
    {"attention": ("local", "sliding", "full"), "layers": 3, "block": 128, "window": 100},
    {"positions": "none", "head_size": 32, "norm_scale": True, "biases": True, "activation": "gelu", "tied": True},
]
PRECISIONS = [(torch.float32, 1e-4), (torch.float16, 0.01), (torch.bfloat16, 0.06)]    # and how far they may err
EITHER = pytest.mark.parametrize(("dtype", "error"), PRECISIONS, ids=str)


@pytest.fixture(autouse=True)
def _the_same_seed():
    torch.manual_seed(1)


def made(dtype=torch.float32, **choice):
    torch.manual_seed(1)
    model = GPT(GPTSettings(**{**SMALL, **choice}), VOCAB).cuda().eval()
    return moved(model, 0.02).to(dtype)


def begun(model, rows):
    """Texts of many lengths, from 1 to 600 tokens."""
    lengths = [1 + 599 * row // max(1, rows - 1) for row in range(rows)]
    texts = [torch.randint(VOCAB, (1, length), device="cuda") for length in lengths]
    return model.reserve(join([model.step(text, model.start(1))[1] for text in texts]), 8)


@pytest.mark.parametrize(("dtype", "error"), [PRECISIONS[0], PRECISIONS[2]], ids=str)
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 40])
@pytest.mark.parametrize("choice", CHOICES, ids=str)
@torch.inference_mode()
def test_a_step_by_kernels_is_a_step(choice, rows, dtype, error):
    agree(choice, rows, dtype, error)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("choice", CHOICES[:3], ids=str)
@torch.inference_mode()
def test_kernels_that_overlap_compute_the_same(choice, rows, monkeypatch):
    if torch.cuda.get_device_capability() < kernels.HOPPER:
        pytest.skip("kernels overlap from Hopper on")
    monkeypatch.setattr(kernels, "OVERLAP", True)
    monkeypatch.setattr(decode, "ONE_KERNEL", False)
    agree(choice, rows, torch.float32, 1e-4)


def agree(choice, rows, dtype, error):
    model = made(dtype, **choice)
    state = begun(model, rows)
    beside = pick(state, torch.arange(rows))
    for _ in range(3):
        column = torch.randint(VOCAB, (rows, 1), device="cuda")
        assert decode.supports(model, column, beside)
        logits, state = model.step(column, state)
        fast, beside = decode.step(model, column, beside)
        scale = float(logits.float().std())
        assert float((fast - logits).float().abs().max()) <= 5 * error * max(1.0, scale)
        assert_close(beside, state, atol=5 * error, rtol=5 * error)


WHOLE = [
    CHOICES[0],
    {**CHOICES[2], "width": 768, "heads": 12, "layers": 4},
    {**CHOICES[3], "window": None, "attention": ("full",)},
    {"width": 320, "heads": 10, "head_size": 32, "kv_heads": 5, "norm": "layer", "activation": "relu"},
    {"width": 512, "heads": 4, "head_size": 128, "activation": "gelu", "norm_scale": True, "norm_embedding": False},
]
TOO_LARGE = WHOLE[1], torch.float32       # for the registers: 32 rows of 768 numbers of 4 bytes are 96 kB


@EITHER
@pytest.mark.parametrize("choice", WHOLE, ids=str)
@torch.inference_mode()
def test_a_step_in_one_kernel_is_a_step_in_many(choice, dtype, error, monkeypatch):
    """At many lengths, ten steps each; and again with the same bits, or a program did not wait for another."""
    model = made(dtype, **choice)
    for length in (1, 2, 64, 255, 600):
        _, state = model.step(torch.randint(VOCAB, (1, length), device="cuda"), model.start(1))
        state = model.reserve(state, 10)
        states = [pick(state, torch.arange(1)) for _ in range(3)]
        assert decode.fits_one_kernel(model, state) == ((choice, dtype) != TOO_LARGE)
        for _ in range(10):
            column = torch.randint(VOCAB, (1, 1), device="cuda")
            found = []
            for one, beside in zip((False, True, True), states):
                monkeypatch.setattr(decode, "ONE_KERNEL", one)
                found.append(decode.step(model, column, beside)[0])
            assert torch.equal(found[1], found[2])
            near = 5 * error * max(1.0, float(found[0].float().std()))
            assert_close(found[1].float(), found[0].float(), atol=near, rtol=0)
        assert_close(states[1], states[0], atol=5 * error, rtol=5 * error)
        assert_close(states[2], states[1], atol=0, rtol=0)


@EITHER
@pytest.mark.parametrize("splits", [1, 4, 8])
@pytest.mark.parametrize("size", [32, 64, 128])
@torch.inference_mode()
def test_attention_reads_the_keys_of_each_row(size, splits, dtype, error):
    from chainrule.kernels import decode_attention, linear

    heads, groups, capacity = 4, 2, 700
    length = torch.tensor([0, 1, 63, 64, 65, 300, 699], device="cuda")
    caches = torch.randn(2, 7, 3, groups, capacity, size, device="cuda").to(dtype)
    for row, position in enumerate(length.tolist()):
        caches[:, row, :, :, position:] = math.nan                 # what comes after a row must not be read
    packed = torch.randn(7, (heads + 2 * groups) * size, device="cuda").to(dtype)
    rope = [part[0, :, 0].contiguous() for part in rope_tables(torch.arange(capacity, device="cuda")[None], size, 1e4)]
    beside = caches.clone()
    layer = caches[0, :, 1], caches[1, :, 1]
    found = decode_attention.decode_attention(packed, *layer, length, rope=rope, splits=splits)
    wanted = reference.decode_attention(packed, beside[0, :, 1], beside[1, :, 1], length, rope=rope).mixed
    if splits > 1:
        same = torch.eye(heads * size, dtype=dtype, device="cuda")
        found = decode_attention.AttentionParts(linear.fused_linear(found, same))
    assert_close(found.mixed, wanted, atol=error, rtol=error)
    assert_close(caches, beside, atol=error, rtol=error, equal_nan=True)


@EITHER
@pytest.mark.parametrize(("inputs", "outputs"), [(768, 2304), (3072, 768), (100, 50_257), (16_384, 33)])
@torch.inference_mode()
def test_a_fused_linear_layer_has_its_norm_activation_and_residual(inputs, outputs, dtype, error):
    from chainrule.kernels import add_norm, linear

    x, residual = torch.randn(5, inputs, device="cuda").to(dtype), torch.randn(5, outputs, device="cuda").to(dtype)
    weight = (torch.randn(outputs, inputs, device="cuda") / inputs**0.5).to(dtype)
    how = add_norm.Norm("layer", 1e-5, *torch.randn(2, inputs, device="cuda").to(dtype))
    bias = weight[:, 0].contiguous()
    answer = linear.fused_linear(x, weight, bias, norm=how, activation="gelu-tanh", residual=residual)
    wanted = reference.fused_linear(x, weight, bias, norm=how, activation="gelu-tanh", residual=residual)
    assert_close(answer, wanted, atol=2 * error, rtol=2 * error)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7), Sampling(3.0, repetition_penalty=1.7)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.inference_mode()
def test_kernels_draw_the_same_tokens(sampling, dtype):
    logits = (3 * torch.randn(512, 50_257, device="cuda")).to(dtype)
    uniform = torch.rand(512, dtype=torch.float64, device="cuda")
    seen = None if sampling.repetition_penalty == 1 else torch.rand(512, 50_257, device="cuda") < 0.3
    wanted, _ = sample_token(logits, sampling, uniform, seen)
    with kernels.in_decoding(True):
        token, possible = sample_token(logits, sampling, uniform, seen)
    assert (token == wanted).float().mean() > 0.99              # a number may lie on an edge
    assert possible.all()


DICE = [Sampling(), Sampling(temperature=0), Sampling(0.8, top_k=9)]
SAMPLED = [(name, die, False) for name in ("gpt", "gpt2", "gpt1", "lstm") for die in DICE] + [("gpt2", DICE[0], True)]


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize(("name", "sampling", "overlap"), SAMPLED, ids=str)
def test_samples_by_kernels_do_not_change(name, sampling, rows, overlap, monkeypatch):
    monkeypatch.setattr(kernels, "OVERLAP", overlap)
    torch.manual_seed(1)
    given = {"model.layers": 2, "model.width": 192, "model.heads": 3, "model.context": 128} if "gpt" in name else {}
    model = build(name, recipe_for(name, given).model, 50).cuda()
    moved(model, 0.05)
    prompts, written, captured = [np.arange(size % 40) % 50 for size in range(3, 3 + rows)], [], []
    graph = decoding.CudaGraph
    monkeypatch.setattr(decoding, "CudaGraph", lambda *args, **named: [graph(*args, **named), captured.append(1)][0])
    for worth in (10**9, 16):
        monkeypatch.setattr(kernels, "STEPS_TO_LOAD", worth)
        monkeypatch.setattr(kernels, "STEPS_ONCE_LOADED", worth)
        captured.clear()
        written.append(torch.stack(list(sample(model, prompts, 300, sampling, ends=False))))
        assert captured                                         # nothing was compiled during a capture
    assert torch.equal(written[0][:20], written[1][:20])
    assert (written[0] == written[1]).float().mean() > 0.8      # rounding may change a row


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
def test_a_captured_step_of_gpt2_is_few_kernels(monkeypatch):
    model = build("gpt2", recipe_for("gpt2").model, 50_257).cuda().bfloat16()
    launched = []
    replay = decoding.DecodeLoop._replay

    def watched(loop, inputs):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            tokens = replay(loop, inputs)
            torch.cuda.synchronize()
        launched.append(sum(event.count for event in profile.key_averages()) / len(tokens))
        monkeypatch.setattr(decoding.DecodeLoop, "_replay", replay)
        return tokens

    monkeypatch.setattr(decoding.DecodeLoop, "_replay", watched)
    list(sample(model, [np.arange(8)], 300, ends=False))
    assert launched[0] < 10                                     # of a step; there were 214, and then 77
