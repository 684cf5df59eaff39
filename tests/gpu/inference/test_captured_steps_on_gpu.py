"""Sampling by captured steps on a GPU: the same tokens as without graphs, in every later call too."""

from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from contract.moved import moved

from chainrule import kernels
from chainrule.inference import decoding, sampling
from chainrule.inference.captured import kept_steps
from chainrule.inference.generate import sample
from chainrule.inference.sampling import Sampling
from chainrule.models import build
from chainrule.training.pipeline import recipe_for

pytestmark = [
    pytest.mark.usefixtures("no_kept_steps"),
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.skipif(not (torch.cuda.is_available() and kernels.available()), reason="kernels do not compile here"),
]
VOCAB = 1000
FEW = 50      # tokens of a vocabulary with which texts soon end
ROWS = pytest.mark.parametrize("rows", [1, 4])
PLAIN = Sampling()


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Kernels are used, and each capture is noted."""
    for name in ("STEPS_TO_LOAD", "STEPS_ONCE_LOADED"):
        monkeypatch.setattr(kernels, name, 0)
    made: list[int] = []
    graph = decoding.CudaGraph
    monkeypatch.setattr(decoding, "CudaGraph", lambda *args, **named: [graph(*args, **named), made.append(1)][0])
    return made


def model_of(dtype: torch.dtype = torch.float32, kind: str = "gpt2", vocab: int = VOCAB) -> Any:
    torch.manual_seed(1)
    small = {"model.layers": 2, "model.width": 192, "model.heads": 3, "model.context": 256}
    return moved(build(kind, recipe_for(kind, small if "gpt" in kind else {}).model, vocab), 0.05).cuda().to(dtype)


def drawn(model: Any, rows: int, limit: int = 150, given: Sampling = PLAIN, ends: bool = False) -> list[list[int]]:
    return torch.stack(list(sample(model, [np.arange(1, 8)] * rows, limit, given, ends=ends))).tolist()


def eagerly(model: Any, *given: Any, **named: Any) -> list[list[int]]:
    """The same by the same kernels, one launched after the other, and each block of steps read before the next."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "capture_step", lambda *given: None)
        patch.setattr(sampling._in_place, "on", False)
        in_decoding, steps = kernels.in_decoding, count()    # without graphs, kernels would be off
        patch.setattr(kernels, "in_decoding", lambda on: in_decoding(next(steps) > 0))
        return drawn(model, *given, **named)


@ROWS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["gpt2", "gpt", "lstm"])
def test_a_seed_draws_the_same_tokens_with_and_without_graphs(
    kind: str, dtype: torch.dtype, rows: int, captures: list[int]
) -> None:
    model = model_of(dtype, kind)
    calls = [drawn(model, rows, given=Sampling(seed=seed)) for seed in (1, 2, 1)]
    assert len(captures) == 1
    assert calls[0] == calls[2] != calls[1]
    assert sampling._in_place.on                              # the kernel that draws in place did compile
    kept_steps.forget_all()
    assert drawn(model, rows) == calls[0]
    assert len(captures) == 2
    kept_steps.forget_all()
    plain = eagerly(model, rows)
    assert plain[:20] == calls[0][:20]
    if kind != "lstm":                                        # whose products are torch's
        assert plain == calls[0]


@ROWS
def test_drawn_in_place_or_by_separate_kernels_the_tokens_are_the_same(
    rows: int, captures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, given = model_of(vocab=FEW), Sampling(0.9)
    for ends in (False, True):
        kept_steps.forget_all()
        in_place = drawn(model, rows, 150, given, ends)
        kept_steps.forget_all()
        with monkeypatch.context() as patch:
            patch.setattr(sampling._in_place, "on", False)
            assert drawn(model, rows, 150, given, ends) == in_place
    assert len(captures) >= 2


@ROWS
@pytest.mark.parametrize("given", [PLAIN, Sampling(0.9, top_k=40)], ids=str)
def test_texts_that_end_early_are_the_same_and_the_next_one_too(
    given: Sampling, rows: int, captures: list[int]
) -> None:
    model, ended_early = model_of(vocab=FEW), 0
    for seed in range(1, 7):
        this = replace(given, seed=seed)
        ended = np.array(drawn(model, rows, given=this, ends=True))
        assert drawn(model, rows, given=this, ends=True) == ended.tolist()
        over = np.cumsum(ended == 0, 0) > 1                  # after the first boundary of a row
        assert (ended[over] == 0).all()
        assert len(ended) == 150 or ((ended[-1] == 0).all() and not (ended[-2] == 0).all())
        ended_early += len(ended) < 150
        free = np.array(drawn(model, rows, given=this))[: len(ended)]
        assert (free[~over] == ended[~over]).all()           # the boundary that ends a row is the same, too
    assert ended_early


@ROWS
def test_after_weights_were_changed_the_next_call_samples_by_the_new_ones(rows: int, captures: list[int]) -> None:
    model = model_of(torch.bfloat16)
    before = drawn(model, rows)
    assert drawn(model, rows) == before
    assert len(captures) == 1
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():                 # in place
            parameter.add_(0.05 * torch.randn_like(parameter))
    changed = drawn(model, rows)
    kept_steps.forget_all()
    assert drawn(model, rows) == changed != before
    model.cpu()                                               # to other memory, perhaps at the same address
    model.cuda()
    assert drawn(model, rows) == changed
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        model.output_matrix.zero_()
    assert drawn(model, rows) != changed
    model.load_state_dict(state)
    assert drawn(model, rows) == changed


def test_two_texts_drawn_in_turns_and_one_left_early_do_not_disturb_each_other(captures: list[int]) -> None:
    model = model_of()
    wanted = [drawn(model, 1, given=Sampling(seed=seed)) for seed in (1, 2)]
    turns = [sample(model, [np.arange(1, 8)], 150, Sampling(seed=seed), ends=False) for seed in (1, 2)]
    found: list[list[list[int]]] = [[], []]
    for columns in zip(*turns):
        for one, column in zip(found, columns):
            one.append(column.tolist())
    assert found == wanted
    left = sample(model, [np.arange(1, 8)], 150, Sampling(seed=3), ends=False)
    for _ in range(20):
        next(left)
    left.close()  # type: ignore[attr-defined]
    assert drawn(model, 1, given=Sampling(seed=2)) == wanted[1]


@ROWS
def test_past_the_context_later_calls_are_the_same(rows: int, captures: list[int]) -> None:
    model = model_of(torch.bfloat16)
    first = drawn(model, rows, 600)
    assert drawn(model, rows, 600) == first == drawn(model, rows, 600)
