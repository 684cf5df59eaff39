"""Compression of what a page contains: zlib, then base64, since a page is text.

Numbers are the largest part of a page. Arrays are taken out of the JSON and stored by byte: the lowest byte of all
numbers of an array first, and the highest bytes, which are similar, last. In a large panel an array keeps as many
digits as its view displays, and a number in the JSON six; a server sends all. `web/page.js` reads this.
"""

import base64
import json
import zlib
from typing import Any

import numpy as np

TYPES = {"float32": "<f4", "int32": "<i4", "uint8": "u1", "uint16": "<u2"}
LARGE = 50_000        # characters of a panel's JSON from which on its numbers are rounded


def deflate(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 9)).decode()


def deflate_data(data: Any, characters: int) -> str:
    """The JSON of a panel, a zero, and the bytes of its arrays. `characters`: of the JSON with its arrays."""
    numbers, rounded = bytearray(), characters >= LARGE

    def taken_out(value: Any) -> Any:
        if isinstance(value, dict) and value.keys() >= {"dtype", "shape", "data"}:
            place = len(numbers)
            numbers.extend(_by_byte(value, rounded))
            return {"dtype": value["dtype"], "shape": value["shape"], "at": place}
        if isinstance(value, dict):
            return {name: taken_out(one) for name, one in value.items()}
        if isinstance(value, float) and rounded:
            return float(f"{value:.6g}")
        return [taken_out(one) for one in value] if isinstance(value, list | tuple) else value

    text = json.dumps(taken_out(data), allow_nan=False, separators=(",", ":"))    # ASCII, so it has no zero
    return deflate(text.encode() + b"\0" + bytes(numbers))


def _by_byte(packed: dict[str, Any], rounded: bool) -> bytes:
    values = np.frombuffer(base64.b64decode(packed["data"]), TYPES[packed["dtype"]])
    if rounded and "digits" in packed:
        values = round_mantissas(values, packed["digits"])
    return values.view(np.uint8).reshape(-1, values.itemsize).T.tobytes()


def round_mantissas(values: np.ndarray[Any, Any], digits: int) -> np.ndarray[Any, Any]:
    """float32, to the nearest with so many of its 24 binary digits: a relative error of at most 2^-digits.

    Infinities stay as they are, and 0, 1 and other numbers that have no more digits.
    """
    zeros = 24 - digits
    bits = values.view("<u4").astype(np.uint64) + (1 << (zeros - 1))      # a carry increases the exponent, as it should
    return (bits >> zeros << zeros).astype("<u4").view("<f4")
