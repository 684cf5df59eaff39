"""CUDA graphs, with CUDA simulated: no garbage is collected during a capture; a failure leaves the generator usable."""

import gc
from contextlib import nullcontext, suppress

import pytest
import torch

from chainrule import device
from chainrule.device import CudaGraph, choose_device, cudnn_attention, shapes_only, tf32_products, undisturbed


class FakeGPU:
    """A GPU whose random generator is spoilt by a capture that fails."""

    def __init__(self, monkeypatch):
        self.state, self.place, self.waited = "spoilt", 7, False
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: self.place)
        monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: setattr(self, "place", state))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: setattr(self, "waited", True))
        monkeypatch.setattr(torch.cuda, "default_generators", [self])
        monkeypatch.setattr(torch, "Generator", lambda device: self)

    def graphsafe_get_state(self):
        return "new"

    def graphsafe_set_state(self, state):
        self.state, self.place = state, 0


@pytest.fixture
def gpu(monkeypatch):
    return FakeGPU(monkeypatch)


@pytest.fixture
def collecting():
    yield
    gc.enable()


def capture(error=None):
    with undisturbed():
        assert not gc.isenabled()
        if error is not None:
            raise error


@pytest.mark.usefixtures("collecting")
@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize("error", [None, RuntimeError("capturing"), KeyboardInterrupt()], ids=repr)
def test_garbage_is_collected_after_it_as_before(gpu, collects, error):
    gc.enable() if collects else gc.disable()
    if error is None:
        capture()
    else:
        with pytest.raises(type(error)):
            capture(error)
    assert gc.isenabled() == collects


def test_the_generator_goes_on_where_it_was_if_a_capture_fails(gpu):
    with pytest.raises(RuntimeError, match="capturing"):
        capture(RuntimeError("capturing"))
    assert (gpu.state, gpu.place, gpu.waited) == ("new", 7, True)


def test_a_capture_that_succeeds_leaves_the_generator_alone(gpu):
    capture()
    assert (gpu.state, gpu.place, gpu.waited) == ("spoilt", 7, False)


class FakeGraph:
    """Kernels that are recorded while a function runs once; here the function itself is run again."""

    def __init__(self):
        self.replay = None

    def pool(self):
        return "pool"


@pytest.mark.usefixtures("gpu")
def test_a_graph_reads_new_inputs_and_goes_on_from_its_own_state(monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(device, "_capture_fast", lambda graph, share: nullcontext())
    added, total, cache = torch.zeros(2), torch.zeros(2), torch.zeros(3)

    def add():
        cache[0] += 1                                      # written in place: it is returned as it is
        return total + added, cache

    graph = CudaGraph(add, [added], [total, cache], tidy=False)
    graph.graph.replay = lambda: graph.set_state(add())
    for number in (1.0, 2.0):
        graph.replay([torch.full((2,), number)])
    assert total.tolist() == [3.0, 3.0]
    assert cache.tolist() == [3.0, 0.0, 0.0]
    graph.set_state([torch.ones(2), torch.ones(3)])
    assert total.tolist() == [1.0, 1.0]


@pytest.mark.usefixtures("gpu")
def test_graphs_may_share_one_memory_pool(monkeypatch):
    pools = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, pool: pools.append(pool) or nullcontext())
    first = CudaGraph(lambda: (), [])
    CudaGraph(lambda: (), [], share=first)
    assert pools == [None, "pool"]


@pytest.fixture
def cudnn_by_default():
    with cudnn_attention(True):
        yield


@pytest.mark.parametrize(("name", "there"), [("cuda", True), ("auto", True), ("auto", False)])
def test_on_a_gpu_attention_is_computed_without_cudnn(monkeypatch, cudnn_by_default, name, there):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    choose_device(name)
    assert torch.backends.cuda.cudnn_sdp_enabled() == (not there)


@pytest.mark.parametrize("on", [True, False])
def test_cudnn_attention_is_as_it_was_afterwards(cudnn_by_default, on):
    with cudnn_attention(on):
        assert torch.backends.cuda.cudnn_sdp_enabled() == on
    assert torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("on", [True, False])
def test_tf32_is_as_it_was_afterwards(before, on):
    matmul = torch.backends.cuda.matmul
    default = matmul.allow_tf32
    try:
        matmul.allow_tf32 = before
        with suppress(KeyError), tf32_products(on):
            assert matmul.allow_tf32 == on
            raise KeyError
        assert matmul.allow_tf32 == before
    finally:
        matmul.allow_tf32 = default


def test_a_network_of_shapes_only_is_the_same_network_and_draws_no_number():
    def make():
        return torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.GRU(3, 4), torch.nn.LayerNorm(4))

    before = torch.get_rng_state()
    with shapes_only():
        network = make()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(weight.is_meta for weight in network.parameters())
    real = make()
    assert {name: weight.shape for name, weight in network.named_parameters()} == {
        name: weight.shape for name, weight in real.named_parameters()}
    assert bool(real[0].weight.std() > 0.1)
