"""Which decoders fit into the kernel of a whole step, and the table by which it finds their parameters."""

from typing import Any

import pytest
import torch

from chainrule.kernels.step_parameters import ALIGNMENT, NAMES, ParameterTable, StepShape, fits, tile_rows
from chainrule.layers import decode
from chainrule.models.gpt import GPT, GPTSettings

H200 = 132    # processors
GPT2 = StepShape(768, 3072, 12, 12, 64, gated=False)
SMALL: dict[str, Any] = {"layers": 2, "width": 64, "heads": 2, "head_size": 32, "context": 16}


@pytest.mark.parametrize(("outputs", "rows"), [(1, 1), (132, 1), (133, 2), (768, 8), (4224, 32), (4225, 64)])
def test_a_program_has_its_share_of_the_rows_rounded_up_to_a_power_of_2(outputs: int, rows: int) -> None:
    assert tile_rows(outputs, H200) == rows


@pytest.mark.parametrize(
    ("shape", "element_size", "fit"),
    [
        (GPT2, 2, True),
        (GPT2, 4, False),                                               # 32 rows of 768 numbers of 4 bytes
        (GPT2._replace(width=1024, hidden=4096, heads=16, kv_heads=16), 2, False),     # GPT-2 medium
        (GPT2._replace(hidden=2048, gated=True), 2, True),
        (GPT2._replace(hidden=4096, gated=True), 2, False),             # gates and values
        (StepShape(384, 1536, 6, 6, 64, gated=False), 4, True),
        (GPT2._replace(heads=66, kv_heads=1, head_size=32), 2, True),
        (GPT2._replace(heads=67, kv_heads=1, head_size=32), 2, False),                 # not two programs for each head
        (StepShape(100, 400, 2, 2, 32, gated=False), 4, True),
        (StepShape(100, 400, 2, 2, 32, gated=False), 2, False),         # rows of 200 bytes are not aligned
    ],
)
def test_small_decoders_fit(shape: StepShape, element_size: int, fit: bool) -> None:
    assert fits(shape, element_size, H200) == fit


def test_with_fewer_processors_less_fits() -> None:
    assert fits(GPT2, 2, 100)
    assert not fits(GPT2, 2, 60)


def rows_of(model: Any) -> list[list[torch.Tensor | None]]:
    return [
        [block.attention_norm.weight, None, block.attention.project.weight, block.attention.project.bias,
         *[None] * 4, block.attention.out.weight, block.attention.out.bias, block.feed_forward_norm.weight, None,
         block.feed_forward.up.weight, block.feed_forward.up.bias, block.feed_forward.out.weight,
         block.feed_forward.out.bias]
        for block in model.stack.blocks
    ]  # fmt: skip


def test_the_table_leads_to_every_parameter() -> None:
    model: Any = GPT(GPTSettings(**SMALL, norm_scale=True, biases=True, qk_norm=False), 20)
    rows, last, base = rows_of(model), model.stack.norm.weight, model.output_matrix
    table = ParameterTable(rows, [last, None], base)
    assert table.aligned
    found = base.data_ptr() + ALIGNMENT * table.tensor
    assert found.shape == (3, len(NAMES))
    for row, addresses in zip(rows, found.tolist()):
        for name, part, at in zip(NAMES, row, addresses):
            instead = table.ones if name in ("q_norm", "k_norm") else table.zeros
            assert at == (instead if part is None else part).data_ptr(), name
    assert found[2, :2].tolist() == [last.data_ptr(), table.zeros.data_ptr()]
    assert len(table.ones) >= 256                                       # the longest vector: the hidden layer's bias
    assert table.ones.eq(1).all()
    assert table.zeros.eq(0).all()


def test_a_parameter_that_moves_is_noticed() -> None:
    model: Any = GPT(GPTSettings(**SMALL, norm_scale=True), 20)
    last, base = [model.stack.norm.weight, None], model.output_matrix
    table = ParameterTable(rows_of(model), last, base)
    assert table.matches(rows_of(model), last, base)
    out = model.stack.blocks[1].attention.out
    out.weight.data = out.weight.data.clone()
    assert not table.matches(rows_of(model), last, base)


def test_a_step_on_a_cpu_is_not_one_kernel() -> None:
    model = GPT(GPTSettings(**SMALL), 20).eval()
    assert not decode.fits_one_kernel(model, model.start(1))


@pytest.mark.parametrize(
    ("settings", "rows", "fit"),
    [
        ({}, 1, True),
        ({}, 2, False),
        ({"experts": 2}, 1, False),
        ({"attention": ("full", "local"), "block": 4}, 1, False),
        ({"hidden": 1 << 15}, 1, False),
    ],
    ids=str,
)
def test_one_row_of_full_attention_is_one_kernel(
    settings: dict[str, Any], rows: int, fit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "_on_gpu", lambda tensor: True)
    monkeypatch.setattr(decode, "_processors", lambda device: H200)
    monkeypatch.setattr(decode, "_table_of", lambda decoder: ParameterTable([], [torch.ones(4)], torch.ones(4)))
    model = GPT(GPTSettings(**{**SMALL, **settings}), 20).eval()
    assert decode.fits_one_kernel(model, model.start(rows)) == fit
