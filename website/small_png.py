"""PNG files of at most 256 colours, a third of the size: the most frequent colours, and the nearest of them."""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from chainrule.text.pictures import PNG, decode_png

COLOURS = 256
STEP = 1.25         # by which the distance of two kept colours grows until they are few enough


def shrink(content: bytes) -> bytes:
    """A PNG of 8 bits a channel -> one with a palette. A picture of few colours stays as it is, pixel by pixel."""
    pixels = decode_png(content)
    codes = pixels.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    known, places, counts = np.unique(codes, return_inverse=True, return_counts=True)
    colours = np.stack([known >> 16 & 255, known >> 8 & 255, known & 255], 1).astype(np.int64)
    kept = keep(colours, np.argsort(-counts, kind="stable"))
    nearest = ((colours[:, None] - colours[kept]) ** 2).sum(2).argmin(1).astype(np.uint8)
    return encode(nearest[places].reshape(codes.shape), colours[kept].astype(np.uint8))


def keep(colours: NDArray[np.int64], order: NDArray[np.intp]) -> list[int]:
    """Places of at most 256 colours: in this order, each that is far enough from all before it."""
    distance = 0.0
    while True:
        kept: list[int] = []
        for place in order.tolist():
            if not kept or ((colours[kept] - colours[place]) ** 2).sum(1).min() > distance**2:
                kept.append(place)
                if len(kept) > COLOURS:
                    break
        else:
            return kept
        distance = max(1.0, distance * STEP)


def encode(indices: NDArray[np.uint8], palette: NDArray[np.uint8]) -> bytes:
    height, width = indices.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), indices], 1).tobytes()         # 0: not filtered
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"PLTE", palette.tobytes()), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return PNG + b"".join(chunk(name, data) for name, data in chunks)


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
