"""What the tests of exercises expect: `same` compares with a snapshot, and says what differs from which formula."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.exercises import SNAPSHOTS

Arrays = dict[str, NDArray[Any]]


def snapshot(test_file: str) -> Arrays:
    """The arrays that belong to `test_NAME.py`: inputs, and the results that chainrule computed from them."""
    path = Path(test_file)
    with np.load(path.parent / SNAPSHOTS / f"{path.stem.removeprefix('test_')}.npz") as arrays:
        return dict(arrays)


def same(found: Any, expected: Any, what: str, formula: str = "", *, tolerance: float = 1e-6) -> None:
    """Asserts that two arrays agree; the message names the shape, or the place and size of the largest difference."""
    rule = f". Expected: {formula}" if formula else ""
    assert found is not None, f"{what} returned None{rule}"
    wanted = _array(expected, what)
    got = _array(found, what)
    assert got.dtype.kind in "biuf", f"{what} has entries of type {got.dtype}, not numbers{rule}"
    assert got.shape == wanted.shape, f"{what} has shape {got.shape}, not {wanted.shape}{rule}"
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    if np.allclose(got, wanted, rtol=tolerance, atol=tolerance):
        return
    if np.isnan(got).any():
        raise AssertionError(f"{what} is nan at {_place(np.isnan(got))}{rule}")
    with np.errstate(invalid="ignore"):
        off = np.where(got == wanted, 0, np.abs(got - wanted))
    place = np.unravel_index(int(np.nanargmax(np.where(np.isnan(off), np.inf, off))), off.shape)
    where = "".join(f"[{', '.join(map(str, map(int, place)))}]" for _ in (1,) if place)
    raise AssertionError(f"{what}{where} is {got[place]:.6g}, not {wanted[place]:.6g}{rule}")


def same_list(found: Any, expected: Any, what: str, formula: str = "") -> None:
    """Asserts that two lists are equal; the message shows the first entry that differs."""
    rule = f". Expected: {formula}" if formula else ""
    assert found is not None, f"{what} returned None{rule}"
    got, wanted = list(found), list(expected)
    for place, (one, other) in enumerate(zip(got, wanted)):
        assert one == other, f"{what}[{place}] is {one!r}, not {other!r}{rule}"
    assert len(got) == len(wanted), f"{what} has {len(got)} entries, not {len(wanted)}{rule}"


def _array(value: Any, what: str) -> NDArray[Any]:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    try:
        return np.asarray(value)
    except ValueError as error:
        raise AssertionError(f"{what} is not an array: {error}") from None


def _place(mask: NDArray[np.bool_]) -> str:
    return str([int(index) for index in np.argwhere(mask)[0]])
