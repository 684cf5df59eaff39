"""GPT on a GPU: it answers as the CPU does, in float32 and bf16; a step can be recorded; memory is what was planned."""

from copy import deepcopy

import pytest
import torch
from contract.moved import moved
from torch.testing import assert_close

from chainrule import kernels
from chainrule.device import choose_precision
from chainrule.flops import activation_bytes
from chainrule.kernels.ops import compiled
from chainrule.layers import cross_entropy as chunked
from chainrule.layers import kv_cache
from chainrule.layers.cross_entropy import chunked_cross_entropy
from chainrule.model import Batch, cross_entropy, pick
from chainrule.models import build, kind
from chainrule.models.gpt import GPT, GPTSettings
from chainrule.plan import make_plan
from chainrule.recipe import make_recipe
from chainrule.training.pipeline import recipe_for

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]

VOCAB = 50
SMALL = {"layers": 2, "width": 64, "heads": 4, "context": 64, "zero_init": False}
CHOICES = [
    {"positions": "rotary"},
    {"positions": "learned", "norm": "layer", "norm_scale": True, "biases": True, "activation": "gelu-tanh"},
    {"positions": "relative", "kv_heads": 2, "norm_first": False, "norm_scale": True, "activation": "gelu"},
    {"positions": "none", "window": 9, "kv_heads": 1, "activation": "swiglu"},
    {"attention": ("local", "sliding", "compressed", "full"), "layers": 4, "block": 16, "window": 8},
    {"attention": ("compressed", "local"), "block": 7, "positions": "relative"},
    {"qkv": False, "scaled": False, "qk_norm": False},
    {"logit_softcap": 3.0, "tied": True, "norm_scale": True},
    {"activation": "geglu", "norm_scale": True},    # no kernel has it
]


def made(**choice):
    torch.manual_seed(1)
    return GPT(GPTSettings(**{**SMALL, **choice}), VOCAB)


def some_batch(rows=3, length=40, vocab=VOCAB):
    tokens = torch.randint(vocab, (rows, length + 1), generator=torch.Generator().manual_seed(2))
    return Batch(tokens[:, :-1], tokens[:, 1:], torch.full((rows,), length - 3))


def by_steps(model, tokens, cuts):
    state, pieces = model.start(len(tokens)), []
    for piece in tokens.split(cuts, 1):
        logits, state = model.step(piece, state)
        pieces.append(logits)
    return torch.cat(pieces, 1)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_a_gpu_gives_the_logits_and_gradients_of_the_cpu(choice):
    here = made(**choice)
    there, batch = deepcopy(here).cuda(), some_batch()
    results = []
    for model, mine in ((here, batch), (there, batch.to("cuda"))):
        total, _, _ = model.loss(mine)
        total.backward()
        with torch.no_grad():
            steps = by_steps(model, mine.tokens, [1, 1, 30, 8])
            assert_close(steps, model(mine), atol=1e-4, rtol=1e-4)
        results.append([total.detach().cpu(), steps.cpu(), *(weight.grad.cpu() for weight in model.parameters())])
    assert_close(results[1], results[0], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_bf16_is_near_float32(choice):
    model, batch = made(**choice).cuda(), some_batch().to("cuda")
    exact, _, _ = model.loss(batch)
    exact_gradients = torch.autograd.grad(exact, list(model.parameters()))
    with torch.autocast("cuda", torch.bfloat16):
        near, _, _ = model.loss(batch)
    gradients = torch.autograd.grad(near, list(model.parameters()))
    assert_close(near, exact, rtol=0.01, atol=0.5)
    length = float(torch.stack([gradient.norm() for gradient in exact_gradients]).norm())
    for one, other in zip(gradients, exact_gradients):
        assert one.dtype == torch.float32
        assert float((one - other).norm()) <= 0.1 * float(other.norm()) + 1e-3 * length    # some are mere rounding
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        assert_close(by_steps(model, batch.tokens, [20, 1, 1, 18]), model(batch), atol=0.2, rtol=0.1)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@torch.inference_mode()
def test_a_step_can_be_captured_once_and_replayed(choice):
    model, tokens = made(**choice).cuda().eval(), some_batch().tokens.cuda()
    wanted = model(Batch(tokens, tokens))
    _, state = model.step(tokens[:, :5], model.start(3))
    state = kv_cache.grow(state, 64, 64)
    column, beside = tokens[:, 5:6].clone(), pick(state, torch.arange(3))
    model.step(column, beside)                                  # warms up, on a copy
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits, after = model.step(column, state)
        state["length"].copy_(after["length"])
    for place in range(5, 40):
        column.copy_(tokens[:, place : place + 1])
        graph.replay()
        assert_close(logits[:, 0], wanted[:, place], atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore")    # torch.compile has its own
@pytest.mark.parametrize(("name", "precision", "large"), [    # vocabulary from which on our kernel is used
    ("gpt", "float32", 4096), ("gpt", "bfloat16", 1), ("gpt", "bfloat16-stream", 1),
    ("gpt2", "float32", 1), ("gpt2", "bfloat16", 4096), ("gpt2", "bfloat16-stream", 4096),
    ("feedforward", "float32", 4096), ("feedforward", "bfloat16", 1),
])
def test_a_compiled_model_has_the_gradients_of_the_model(monkeypatch, name, precision, large):
    given = {"model.layers": 2, "model.width": 64, "model.heads": 2, "model.context": 64} if "gpt" in name else {}
    torch.manual_seed(1)
    model = build(name, recipe_for(name, given | {"model.dropout": 0.0}).model, 70).cuda()
    moved(model, 0.02)
    monkeypatch.setattr(chunked, "MIN_FUSED_VOCAB", large)
    monkeypatch.setitem(chunked.CHUNK_LOGITS, "cuda", 128 * 70)         # in two chunks
    chosen = choose_precision(precision, torch.device("cuda"))
    batch, answers = some_batch(4, 64, 70).to("cuda"), []
    for nats in (model.loss, compiled(model.loss)):
        with chosen():
            total, _, _ = nats(batch)
        answers.append([total.detach(), *torch.autograd.grad(total, list(model.parameters()))])
    bound = 1e-3 if precision == "float32" else 0.03
    length = float(torch.stack([gradient.norm() for gradient in answers[0][1:]]).norm())
    for one, other in zip(*answers):
        assert float((one - other).norm()) <= bound * float(other.norm()) + 1e-3 * length


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("norm", ["rms", "layer"])               # the latter gives float32 under CUDA's autocast
def test_a_bfloat16_residual_stream_stays_so_after_a_norm(norm, norm_first):
    model, batch, types = made(norm=norm, norm_first=norm_first).cuda(), some_batch().to("cuda"), []
    for block in model.stack.blocks:
        block.register_forward_hook(lambda _, __, out: types.append(out[0].dtype))
    for name, wanted in (("bfloat16", torch.float32), ("bfloat16-stream", torch.bfloat16)):
        types.clear()
        with choose_precision(name, torch.device("cuda"))():
            model(batch)
        assert set(types) == {wanted}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("cap", [None, 3.0])
@pytest.mark.parametrize(("vocab", "width"), [(70, 128), (8192, 8192), (30_001, 30_016)])
def test_the_kernel_of_cross_entropy_computes_what_torch_computes(vocab, width, cap, smoothing):
    generator = torch.Generator("cuda").manual_seed(1)
    logits = 4 * torch.randn(40, width, device="cuda", generator=generator)
    targets = torch.randint(vocab, (40,), device="cuda", generator=generator)
    fused = chunked.fused_cross_entropy_and_grad(logits, targets, vocab, cap, smoothing)
    nats, error = chunked.cross_entropy_and_grad(logits.clone(), targets, vocab, cap, smoothing)
    assert kernels.available()
    assert_close(fused[0], nats, rtol=1e-5, atol=1e-5)
    assert_close(fused[1][:, :vocab], error[:, :vocab], rtol=1e-4, atol=1e-6)
    assert not fused[1][:, vocab:].any()
    half, _ = chunked.fused_cross_entropy_and_grad(logits.bfloat16(), targets, vocab, cap, smoothing)
    assert_close(half, nats, rtol=0.02, atol=0.05)


def test_the_logits_of_a_large_vocabulary_are_never_held_all_at_once(monkeypatch):
    monkeypatch.setitem(chunked.CHUNK_LOGITS, "cuda", 1 << 22)
    vocab, width = 32_000, 64
    hidden = torch.randn(8, 512, width, device="cuda", requires_grad=True)
    weight = torch.randn(vocab, width, device="cuda", requires_grad=True)
    batch = some_batch(8, 512, vocab).to("cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.autocast("cuda", torch.bfloat16):
        total, _ = chunked_cross_entropy(hidden, weight, None, batch)
    total.backward()
    peak = torch.cuda.max_memory_allocated() - before
    assert peak < 16 * (1 << 22) + 6 * weight.nbytes            # all of them would be 524 MB in float32 alone
    exact, _ = cross_entropy(hidden.detach() @ weight.detach().T, batch)
    assert_close(total, exact, rtol=0.01, atol=0)


@pytest.mark.parametrize("name", ["gpt", "gpt2"])
def test_a_training_step_needs_the_memory_that_was_planned(name):
    given = {"model.layers": 6, "model.width": 512, "model.heads": 8, "model.context": 512, "text.vocab": 256}
    recipe = make_recipe(name, GPT, given, kind(name).preset)
    model = GPT(recipe.model, 256).cuda()
    used = {}
    for rows in (8, 24):
        batch = some_batch(rows, 512, 256).to("cuda")
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", torch.bfloat16):
            total, _, _ = model.loss(batch)
        used[rows] = torch.cuda.memory_allocated() - before
        total.backward()
        model.zero_grad()
    assert activation_bytes(recipe.model) == pytest.approx((used[24] - used[8]) / (16 * 512), rel=0.2)
    assert make_plan(recipe).rows["ddp"] > 24
