"""Local, sliding and compressed attention on a GPU: torch's kernel for windows agrees with blocks; memory is small."""

import pytest
import torch
from torch.testing import assert_close

from chainrule.kernels.ops import compiled
from chainrule.layers import local_attention
from chainrule.layers.local_attention import SlidingAttention, window_kernel
from chainrule.model import Batch
from chainrule.models.gpt import GPT, GPTSettings

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]

SMALL = {"layers": 2, "width": 128, "heads": 2, "zero_init": False}


def made(**settings):
    torch.manual_seed(1)
    return GPT(GPTSettings(**{**SMALL, **settings}), 50).cuda()


def some_batch(rows, length):
    tokens = torch.randint(50, (rows, length + 1), generator=torch.Generator().manual_seed(2)).cuda()
    return Batch(tokens[:, :-1], tokens[:, 1:])


def gradients(model, batch):
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        nats, count, _ = model.loss(batch)
    (nats / count).backward()
    return [nats.detach() / count, *(weight.grad.clone() for weight in model.parameters())]


@pytest.mark.parametrize("kv_heads", [2, 1])
@pytest.mark.parametrize("length", [64, 100, 333])
def test_torchs_kernel_for_windows_is_what_blocks_compute(length, kv_heads, monkeypatch):
    if not window_kernel(grouped=kv_heads == 1):
        pytest.skip("this torch has no such kernel")
    model, batch, calls = made(window=50, context=512, kv_heads=kv_heads), some_batch(3, length), []
    by_kernel = SlidingAttention._by_kernel
    monkeypatch.setattr(SlidingAttention, "_by_kernel", lambda *args: calls.append(1) or by_kernel(*args))
    fast = gradients(model, batch)
    assert len(calls) == model.settings.layers
    monkeypatch.setattr(local_attention, "WINDOW_KERNEL", False)
    slow = gradients(model, batch)
    assert len(calls) == model.settings.layers
    for one, other in zip(fast, slow):
        assert float((one - other).norm()) <= 0.05 * float(other.norm()) + 1e-3


@pytest.mark.filterwarnings("ignore")    # torch.compile has its own
@pytest.mark.parametrize("kind", ["local", "sliding", "compressed"])
def test_a_compiled_model_has_the_same_gradients(kind):
    model, batch = made(attention=(kind,), context=512), some_batch(2, 512)
    eager = gradients(model, batch)
    model.loss = compiled(model.loss)
    for one, other in zip(gradients(model, batch), eager):
        assert float((one - other).norm()) <= 0.05 * float(other.norm()) + 1e-3


@pytest.mark.parametrize("kind", ["local", "sliding"])
def test_memory_grows_with_the_text_and_not_with_its_square(kind):
    peaks = []
    for length in (4096, 32768):
        model, batch = made(attention=(kind,), context=32768), some_batch(1, length)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        gradients(model, batch)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] < 10 * peaks[0]


@pytest.mark.parametrize("kind", ["local", "sliding"])
def test_a_float32_model_on_a_gpu_is_that_of_the_cpu(kind):
    model, batch = made(attention=(kind,), context=512), some_batch(2, 300)
    there = model(batch).cpu()
    tokens = batch.tokens.cpu()
    assert_close(there, model.cpu()(Batch(tokens, tokens)), atol=1e-3, rtol=1e-3)
