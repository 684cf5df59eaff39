"""Recurrent stacks, fused and written out, against torch.nn, loops over the formulas, and the lecture's toy nets."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close

from chainrule.layers.cells import CELLS
from chainrule.layers.cudnn import flatten_weights
from chainrule.layers.recurrent import RecurrentStack
from chainrule.models.rnn import VariationalDropout

ROWS, LENGTH, INPUTS, HIDDEN, LAYERS = 4, 9, 7, 6, 3
LENGTHS = torch.tensor([9, 1, 5, 3])
WAYS = ("fused", "written out")
UNBOUNDED = ("relu", "identity")    # with larger weights outputs grow to thousands, and float32 rounds them by 1e-4

cells = pytest.mark.parametrize("cell", CELLS)
directed = pytest.mark.parametrize("directions", [1, 2])
both_ways = pytest.mark.parametrize("way", WAYS)


def make(cell, directions=1, layers=LAYERS, **given):
    torch.manual_seed(1)
    stack = RecurrentStack(cell, INPUTS, HIDDEN, layers, directions=directions, **given)
    for parameter in stack.parameters():
        nn.init.normal_(parameter, std=0.2 if cell in UNBOUNDED else 0.5)
    return stack


def some_inputs(seed=2, rows=ROWS):
    return torch.randn(rows, LENGTH, INPUTS, generator=torch.Generator().manual_seed(seed))


def some_state(stack, seed=3, rows=ROWS):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(part.shape, generator=generator) for name, part in stack.start(rows).items()}


def run(stack, way, x, state, lengths=None):
    return stack(x, state, lengths) if way == "fused" else stack.unrolled(x, state, lengths)[:2]


def of_torch(stack, cell, directions):
    """torch.nn's own deep network, with the same weights."""
    kind = {"gru": nn.GRU, "lstm": nn.LSTM}.get(cell, nn.RNN)
    given = {"nonlinearity": cell} if kind is nn.RNN else {}
    judge = kind(INPUTS, HIDDEN, LAYERS, batch_first=True, bidirectional=directions == 2, **given)
    with torch.no_grad():
        for number, layer in enumerate(stack.layers):
            for mine, theirs in zip(layer.rnn.all_weights, judge.all_weights[number * directions :]):
                for one, other in zip(mine, theirs):
                    other.copy_(one)
    return judge


def state_of_torch(state, directions):
    """(B, L, K·H) -> (L·K, B, H), and a pair where there are two."""
    parts = [part.reshape(len(part), -1, HIDDEN).transpose(0, 1).contiguous() for part in state.values()]
    return tuple(parts) if len(parts) > 1 else parts[0]


# Against torch.nn


@both_ways
@directed
@pytest.mark.parametrize("cell", ["tanh", "relu", "gru", "lstm"])
def test_outputs_state_and_gradients_are_those_of_torch(cell, directions, way):
    stack, x = make(cell, directions), some_inputs().requires_grad_()
    judge, state = of_torch(stack, cell, directions), some_state(stack)
    outputs, after = run(stack, way, x, state)
    wanted, last = judge(x, state_of_torch(state, directions))
    assert_close(outputs, wanted, atol=1e-5, rtol=0)
    assert_close(state_of_torch(after, directions), last, atol=1e-5, rtol=0)
    blame = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(5))
    mine, theirs = ((result * blame).sum() for result in (outputs, wanted))
    for loss in (mine, theirs):
        loss.backward(retain_graph=True)
    assert_close(torch.autograd.grad(mine, x), torch.autograd.grad(theirs, x), atol=1e-4, rtol=1e-4)
    ours = [part.grad for layer in stack.layers for each in layer.rnn.all_weights for part in each]
    assert_close(ours, [part.grad for each in judge.all_weights for part in each], atol=1e-4, rtol=1e-4)


@both_ways
@pytest.mark.parametrize("cell", ["tanh", "gru", "lstm"])
def test_with_lengths_it_is_what_torch_makes_of_a_packed_sequence(cell, way):
    stack, x = make(cell, 2), some_inputs()
    judge, state = of_torch(stack, cell, 2), some_state(stack)
    outputs, after = run(stack, way, x, state, LENGTHS)
    packed = pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    wanted, last = judge(packed, state_of_torch(state, 2))
    assert_close(outputs, pad_packed_sequence(wanted, batch_first=True)[0], atol=1e-5, rtol=0)
    assert_close(state_of_torch(after, 2), last, atol=1e-5, rtol=0)


# Against the formulas, number by number


def logistic(z):
    return 1 / (1 + math.exp(-z))


def sums(matrix, vector, bias):
    return [sum(w * v for w, v in zip(row, vector)) + b for row, b in zip(matrix, bias)]


def by_loops(cell, layer, x):
    """The lecture's formulas for one row of one layer, from a zero state; without tensors."""
    U, W, b_U, b_W = (part.tolist() for part in layer.rnn.all_weights[0])
    h, C, outputs = [0.0] * HIDDEN, [0.0] * HIDDEN, []
    for column in x.tolist():
        read, kept = sums(U, column, b_U), sums(W, h, b_W)
        gates = list(zip(read, kept))
        gate = [gates[place : place + HIDDEN] for place in range(0, len(gates), HIDDEN)]
        for j in range(HIDDEN):
            if cell == "lstm":
                i, f, o = (logistic(sum(gate[k][j])) for k in (0, 1, 3))
                C[j] = f * C[j] + i * math.tanh(sum(gate[2][j]))
                h[j] = o * math.tanh(C[j])
            elif cell == "gru":
                r, z = (logistic(sum(gate[k][j])) for k in (0, 1))
                h[j] = (1 - z) * math.tanh(gate[2][j][0] + r * gate[2][j][1]) + z * h[j]
            else:
                h[j] = {"tanh": math.tanh, "sigmoid": logistic, "relu": lambda z: max(z, 0)}.get(
                        cell, lambda z: z)(sum(gate[0][j]))
        outputs.append(list(h))
    return torch.tensor(outputs)


@both_ways
@cells
def test_outputs_are_the_lecture_s_formulas(cell, way):
    stack, x = make(cell, layers=1), some_inputs(rows=1)
    outputs, _ = run(stack, way, x, stack.start(1))
    assert_close(outputs[0], by_loops(cell, stack.layers[0], x[0]), atol=1e-5, rtol=1e-6)


@both_ways
def test_the_summation_network_sums(way):
    """h' = 1·h + 1·x: the lecture's inputs 2, -0.5, 1, 1."""
    stack = by_hand("relu", U=[[1.0]], W=[[1.0]], b=[0.0])
    outputs, _ = run(stack, way, torch.tensor([[[2.0], [-0.5], [1.0], [1.0]]]), stack.start(1))
    assert outputs[0, :, 0].tolist() == [2.0, 1.5, 2.5, 3.5]


@both_ways
def test_the_comparison_network_says_which_input_has_the_greater_sum(way):
    """h' = h + x1 - x2, y = σ(5h). The sum may be negative and relu may not, so the net counts from 10."""
    stack = by_hand("relu", U=[[1.0, -1.0]], W=[[1.0]], b=[0.0], learned_start=True)
    nn.init.constant_(stack.initial, 10.0)
    outputs, _ = run(stack, way, torch.tensor([[[2.0, -2.0], [0.0, 3.5], [1.0, 2.2]]]), stack.start(1))
    assert_close(torch.sigmoid(5 * (outputs[0, :, 0] - 10)), torch.tensor([1.0, 0.92, 0.03]), atol=0.005, rtol=0)


def by_hand(cell, U, W, b, **given):
    stack = RecurrentStack(cell, len(U[0]), len(W), 1, **given)
    with torch.no_grad():
        for part, value in zip(stack.layers[0].rnn.all_weights[0], (U, W, b, [0.0] * len(b))):
            part.copy_(torch.tensor(value))
    return stack


# Fused and written out


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "padded"])
@directed
@cells
def test_fused_and_unrolled_agree_to_the_mask(cell, directions, lengths):
    """While learning, too: a seed drops the same numbers and weights in both."""
    between = nn.Dropout(0.3) if directions == 1 else VariationalDropout(0.3)
    stack, x = make(cell, directions, between=between, weight_dropout=0.4), some_inputs()
    results = []
    for way in WAYS:
        torch.manual_seed(6)
        stack.zero_grad()
        outputs, after = run(stack, way, x, some_state(stack), lengths)
        outputs.square().sum().backward()
        results.append((outputs, after, [parameter.grad.clone() for parameter in stack.parameters()]))
    (fused, fused_after, fused_grad), (written, written_after, written_grad) = results
    assert_close(fused, written, atol=1e-5, rtol=1e-5)
    assert_close(fused_after, written_after, atol=1e-5, rtol=1e-5)
    assert_close(fused_grad, written_grad, atol=1e-4, rtol=1e-4)


@cells
def test_what_is_seen_is_what_happened(cell):
    stack, x = make(cell), some_inputs()
    outputs, after, seen = stack.unrolled(x, stack.start(ROWS))
    assert seen.keys() == set(CELLS[cell].activations)
    assert seen["hidden"].shape == (ROWS, LENGTH, LAYERS, HIDDEN)
    assert_close(seen["hidden"][:, :, -1], outputs)
    for name, last in after.items():
        assert_close(seen[name][:, -1], last)
    if cell == "lstm":
        i, f, candidate, o = seen["gates"].unbind(3)
        C = seen["cell"]
        assert_close(C[:, 1:], f[:, 1:] * C[:, :-1] + i[:, 1:] * candidate[:, 1:])
        assert_close(seen["hidden"], o * torch.tanh(C))
    if cell == "gru":
        assert seen["gates"].shape == (ROWS, LENGTH, LAYERS, 2, HIDDEN)


@pytest.mark.parametrize("directions", [1, 2])
@cells
def test_gradients_are_right_in_double_precision(cell, directions):
    stack = make(cell, directions, layers=1, learned_start=True).double()
    x = some_inputs(rows=2)[:, :3].double().requires_grad_()
    for way in WAYS:
        assert torch.autograd.gradcheck(lambda x, way=way: run(stack, way, x, stack.start(2))[0], x, fast_mode=True)


# Padding


@both_ways
@directed
@cells
def test_padding_on_the_right_changes_nothing(cell, directions, way):
    stack, x = make(cell, directions), some_inputs()
    outputs, after = run(stack, way, x, some_state(stack), LENGTHS)
    real = torch.arange(LENGTH) < LENGTHS[:, None]
    rubbish = torch.where(real[..., None], x, 100 * some_inputs(seed=8))
    assert_close((outputs, after), run(stack, way, rubbish, some_state(stack), LENGTHS))
    assert outputs[~real].eq(0).all()
    for row, length in enumerate(LENGTHS.tolist()):
        alone = {name: part[row : row + 1] for name, part in some_state(stack).items()}
        wanted, last = run(stack, way, x[row : row + 1, :length], alone)
        assert_close(outputs[row : row + 1, :length], wanted, atol=1e-5, rtol=1e-5)
        assert_close({name: part[row : row + 1] for name, part in after.items()}, last, atol=1e-5, rtol=1e-5)


def test_the_second_direction_reads_the_future_and_the_first_does_not():
    stack, x = make("gru", 2, layers=1), some_inputs()
    changed = x.clone()
    changed[:, 5] += 1
    one, other = (stack(inputs, stack.start(ROWS))[0] for inputs in (x, changed))
    same = (one == other).all(0)
    assert same[:5, :HIDDEN].all()
    assert not same[:5, HIDDEN:].any()
    assert same[6:, HIDDEN:].all()


# States


@cells
def test_a_learned_initial_state_is_trained(cell):
    stack = make(cell, learned_start=True)
    outputs, _ = stack(some_inputs(), stack.start(ROWS))
    outputs.sum().backward()
    assert (stack.initial.grad != 0).all() or cell == "relu"
    assert stack.initial.grad.abs().sum() > 0
    assert "initial" in stack.state_dict()


@cells
def test_a_zero_initial_state_has_no_parameters(cell):
    stack = RecurrentStack(cell, INPUTS, HIDDEN, LAYERS)
    assert all(part.eq(0).all() and part.shape == (2, LAYERS, HIDDEN) for part in stack.start(2).values())
    assert "initial" not in stack.state_dict()


# Dropout


DROPPING = {
    "weights": {"weight_dropout": 0.5},
    "between": {"between": nn.Dropout(0.5)},
    "locked": {"between": VariationalDropout(0.5)},
}


@pytest.mark.parametrize("how", DROPPING)
def test_eval_has_no_dropout_and_a_seed_repeats_a_mask(how):
    stack, x = make("lstm", **DROPPING[how]), some_inputs()

    def outputs(seed):
        torch.manual_seed(seed)
        return stack(x, stack.start(ROWS))[0]

    assert torch.equal(outputs(1), outputs(1))
    assert not torch.equal(outputs(1), outputs(2))
    stack.eval()
    assert torch.equal(outputs(1), outputs(2))
    assert torch.equal(outputs(1), make("lstm")(x, stack.start(ROWS))[0])


def test_weight_dropout_drops_only_hidden_to_hidden_weights():
    torch.manual_seed(1)
    layer = RecurrentStack("lstm", 40, 50, 1, weight_dropout=0.3).layers[0]
    (dropped,), (U, W, b_U, b_W) = layer.weights(), layer.rnn.all_weights[0]
    assert dropped.U is U
    assert dropped.b_U is b_U
    assert dropped.b_W is b_W
    gone = dropped.W == 0
    assert abs(float(gone.float().mean()) - 0.3) < 0.02
    assert_close(dropped.W[~gone], W[~gone] / 0.7)


def test_locked_dropout_drops_the_same_numbers_at_every_token():
    torch.manual_seed(1)
    dropped = VariationalDropout(0.4)(torch.ones(5, 30, 50))
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert_close(dropped.unique(), torch.tensor([0, 1 / 0.6]))
    assert not torch.equal(dropped[0], dropped[1])


# Kernels


def test_flattened_weights_are_one_chunk_and_pass_gradients_on():
    parts = [torch.randn(8, 3), torch.randn(8, 2), torch.randn(8), torch.randn(8)] * 2
    weights = [part.clone().requires_grad_() for part in parts]
    pieces = flatten_weights(weights)
    assert_close(pieces, weights)
    order = [0, 1, 4, 5, 2, 3, 6, 7]
    starts = [pieces[place].storage_offset() for place in order]
    assert starts == [0, 24, 40, 64, 80, 88, 96, 104]
    assert len({piece.untyped_storage().data_ptr() for piece in pieces}) == 1
    sum((piece * number).sum() for number, piece in enumerate(pieces)).backward()
    assert all(weight.grad.eq(number).all() for number, weight in enumerate(weights))
    assert flatten_weights(pieces) is pieces


@both_ways
@directed
@cells
def test_it_runs_in_bfloat16_where_asked_and_carries_its_state_in_float32(cell, directions, way):
    stack, x = make(cell, directions), some_inputs()
    wanted, _ = run(stack, way, x, some_state(stack), LENGTHS)
    with torch.autocast("cpu", torch.bfloat16):
        outputs, after = run(stack, way, x, some_state(stack), LENGTHS)
        outputs.float().sum().backward()
    assert all(part.dtype == torch.float32 for part in after.values())
    assert_close(outputs.float(), wanted, atol=0.1, rtol=0.1)
    assert all(parameter.grad.isfinite().all() for parameter in stack.parameters())


@cells
def test_bf16_on_a_cpu_leaves_the_cells_as_they_are(cell):
    stack = make(cell)
    plain, after = stack(some_inputs(), some_state(stack))
    with torch.autocast("cpu", torch.bfloat16):
        outputs, state = stack(some_inputs(), some_state(stack))
    assert torch.equal(outputs, plain)
    assert all(torch.equal(state[name], after[name]) for name in after)
