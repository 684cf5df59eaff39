"""Feed-forward and recurrent networks on a GPU: cuDNN answers as the CPU does, and gets weights as it likes them."""

from copy import deepcopy

import pytest
import torch
from torch.testing import assert_close

from chainrule.layers.cells import CELLS
from chainrule.layers.cudnn import flatten_weights
from chainrule.layers.recurrent import RecurrentStack
from chainrule.model import Batch, watch
from chainrule.models.feedforward import FeedForward, FeedForwardSettings
from chainrule.models.rnn import GRU, LSTM, Elman, ElmanSettings, RecurrentSettings, VariationalDropout

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]

ROWS, LENGTH, INPUTS, HIDDEN, VOCAB = 4, 9, 24, 32, 50
LENGTHS = torch.tensor([9, 1, 5, 3])
MODELS = {
    "feedforward": lambda: FeedForward(FeedForwardSettings(hidden=HIDDEN, embedding=8, direct=True), VOCAB),
    "rnn": lambda: Elman(ElmanSettings(hidden=HIDDEN, start="learned"), VOCAB),
    "sigmoid": lambda: Elman(ElmanSettings(hidden=HIDDEN, nonlinearity="sigmoid"), VOCAB),
    "gru": lambda: GRU(RecurrentSettings(hidden=HIDDEN, weight_dropout=0.3), VOCAB),
    "lstm": lambda: LSTM(RecurrentSettings(hidden=HIDDEN, dropout=0.2, locked_dropout=True), VOCAB),
}


def make(cell, directions, **given):
    torch.manual_seed(1)
    return RecurrentStack(cell, INPUTS, HIDDEN, 2, directions=directions, learned_start=True, **given)


def some_inputs():
    return torch.randn(ROWS, LENGTH, INPUTS, generator=torch.Generator().manual_seed(2))


def text(rows=8, length=30):
    tokens = torch.randint(VOCAB, (rows, length + 1), generator=torch.Generator().manual_seed(3))
    return Batch(tokens[:, :-1], tokens[:, 1:])


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "padded"])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_a_stack_answers_and_learns_as_it_does_on_the_cpu(cell, directions, lengths):
    here, x = make(cell, directions), some_inputs()
    there = make(cell, directions).cuda()
    wanted, last = here(x, here.start(ROWS), lengths)
    found, after = there(x.cuda(), there.start(ROWS), None if lengths is None else lengths.cuda())
    assert_close(found.cpu(), wanted, atol=1e-4, rtol=1e-4)
    assert_close({name: part.cpu() for name, part in after.items()}, last, atol=1e-4, rtol=1e-4)
    wanted.square().sum().backward()
    found.square().sum().backward()
    for mine, theirs in zip(here.parameters(), there.parameters()):
        assert_close(theirs.grad.cpu(), mine.grad, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_dropped_weights_and_copied_ones_reach_the_kernel_without_a_warning(cell, directions):
    """Warnings are errors here, and cuDNN warns of weights that do not lie in one piece."""
    between = VariationalDropout(0.3)
    stack, x = make(cell, directions, between=between, weight_dropout=0.4).cuda(), some_inputs().cuda()
    for copy in (stack, deepcopy(stack)):
        for train in (True, False):
            copy.train(train)
            torch.manual_seed(4)
            fused, _ = copy(x, copy.start(ROWS))
            torch.manual_seed(4)
            written, _, _ = copy.unrolled(x, copy.start(ROWS))
            assert_close(fused, written, atol=1e-4, rtol=1e-4)
            fused.sum().backward()    # in eval too


@pytest.mark.parametrize("cell", CELLS)
def test_a_stack_runs_in_bfloat16(cell):
    stack, x = make(cell, 1, weight_dropout=0.1).cuda().eval(), some_inputs().cuda()
    wanted, _ = stack(x, stack.start(ROWS))
    for train in (False, True):
        stack.train(train)
        with torch.autocast("cuda", torch.bfloat16):
            found, after = stack(x, stack.start(ROWS))
            found.float().sum().backward()
        assert all(part.dtype == torch.float32 for part in after.values())
        if not train:
            assert_close(found.float(), wanted, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_learns_and_what_is_watched_agrees(name, precision):
    torch.manual_seed(1)
    model, batch = MODELS[name]().cuda(), text().to("cuda")
    optimizer, seen = torch.optim.Adam(model.parameters(), 0.01), []
    with torch.autocast("cuda", torch.bfloat16, enabled=precision == torch.bfloat16):
        for _ in range(80):
            optimizer.zero_grad()
            nats, count, _ = model.loss(batch)
            (nats / count).backward()
            optimizer.step()
            seen.append((nats / count).detach())
        model.eval()
        plain, _, _ = model.loss(batch)
        with watch(model, "hidden"):
            watched, _, _ = model.loss(batch)
    assert seen[-1] < seen[0] - 0.3
    assert_close(watched, plain, rtol=1e-4 if precision == torch.float32 else 0.02, atol=0)


@pytest.mark.parametrize("name", ["rnn", "sigmoid", "gru", "lstm"])
def test_a_step_can_be_captured_in_a_graph(name):
    torch.manual_seed(1)
    model, batch = MODELS[name]().cuda(), text().to("cuda")
    before = deepcopy(model).eval()
    model.eval()
    state = {part: value.detach().clone() for part, value in model.start(len(batch.tokens)).items()}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())    # where tokens may still be on their way
    with torch.cuda.stream(side):
        for _ in range(3):
            model.loss(batch, state)[0].backward()
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        nats, _, _ = model.loss(batch, state)
        nats.backward()
    graph.replay()
    wanted, _, _ = before.loss(batch, state)
    wanted.backward()
    assert_close(nats, wanted)
    for mine, theirs in zip(model.parameters(), before.parameters()):
        if theirs.grad is not None:
            assert_close(mine.grad, theirs.grad, atol=1e-4, rtol=1e-4)


def test_weights_lie_end_to_end_as_cudnn_wants_them():
    weights = [part for one in make("lstm", 2).cuda().layers[0].weights() for part in one]
    assert flatten_weights(weights) is weights
