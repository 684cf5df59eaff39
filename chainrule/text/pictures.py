"""Picture files as arrays: PNG, PGM and PPM; others, such as JPEG, where Pillow is installed.

PNG (RFC 2083): chunks, whose IDAT parts hold the rows, compressed by zlib and filtered: each byte is stored as its
difference from a prediction by its neighbours a (left), b (above) and c (above left).

Shapes: H x W pixels, C channels: every picture has three, red, green and blue.
"""

import re
import struct
import zlib
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from chainrule.errors import UserError

Pixels: TypeAlias = NDArray[np.uint8]

SUFFIXES = (".png", ".pgm", ".ppm", ".jpg", ".jpeg", ".gif", ".webp", ".bmp")
PNG = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}             # by colour type: gray, RGB, palette, gray and RGB with alpha
PALETTE = 3
LARGEST = 1 << 26                                     # pixels
NETPBM = re.compile(rb"P([56])(?:\s|#[^\n]*\n)+(\d+)(?:\s|#[^\n]*\n)+(\d+)(?:\s|#[^\n]*\n)+(\d+)\s")


def is_picture(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def read_picture(path: Path) -> Pixels:
    """(H, W, 3)"""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"there is no picture {path}: {error.strerror}.") from None
    try:
        if content.startswith(PNG):
            return decode_png(content)
        if found := NETPBM.match(content):
            return _decode_netpbm(content, found)
        return _by_pillow(path)
    except (ValueError, struct.error, zlib.error, IndexError) as error:
        raise UserError(f"{path} is not a picture that can be read: {str(error)[:100]}.") from None


def resize(picture: Pixels, height: int, width: int) -> Pixels:
    """Bilinear, with antialiasing."""
    pixels = torch.tensor(picture).movedim(-1, 0)[None].float()
    scaled = interpolate(pixels, (height, width), mode="bilinear", antialias=True)
    array: Pixels = scaled[0].movedim(0, -1).round().clamp(0, 255).byte().numpy()
    return array


def decode_png(content: bytes) -> Pixels:
    """(H, W, 3), of 8 bits a channel, not interlaced; what is transparent is drawn on black."""
    chunks = _chunks(content)
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    if depth != 8 or interlaced or colour not in CHANNELS:
        raise ValueError(f"PNG of {depth} bits a channel{', interlaced' * interlaced}; it should be 8 bits, plain")
    if not 0 < width * height <= LARGEST:
        raise ValueError(f"{height} x {width} pixels")
    channels = CHANNELS[colour]
    rows = np.frombuffer(zlib.decompress(chunks.get(b"IDAT", b"")), np.uint8)
    pixels = _unfiltered(rows.reshape(height, 1 + width * channels), channels).reshape(height, width, channels)
    if colour == PALETTE:
        pixels = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)[pixels[..., 0]]
    if channels in (2, 4):
        opaque = pixels[..., -1:].astype(np.uint16)
        pixels = (pixels[..., :-1] * opaque // 255).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(pixels, (height, width, 3)))


def _chunks(content: bytes) -> dict[bytes, bytes]:
    """The data by the name of the chunk; that of several of one name, joined."""
    found: dict[bytes, bytes] = {}
    place = len(PNG)
    while place + 8 <= len(content):
        size, name = struct.unpack(">I4s", content[place : place + 8])
        data = content[place + 8 : place + 8 + size]
        if len(data) < size:
            raise ValueError("the PNG file is cut off")
        found[name] = found.get(name, b"") + data
        place += 12 + size                                            # length, name, data, checksum
    if b"IHDR" not in found:
        raise ValueError("a PNG file without a header")
    return found


def _unfiltered(rows: Pixels, step: int) -> Pixels:
    """(H, 1 + W · C) -> (H, W · C): the first byte of a row names its filter; `step`: bytes of a pixel."""
    above = np.zeros(rows.shape[1] - 1, np.uint8)
    result = np.empty((len(rows), rows.shape[1] - 1), np.uint8)
    for number, row in enumerate(rows):
        above = result[number] = _unfilter(int(row[0]), row[1:], above, step)
    return result


def _unfilter(kind: int, row: Pixels, above: Pixels, step: int) -> Pixels:
    if kind == 0:
        return row
    if kind == 1:                                                     # left
        return np.cumsum(row.reshape(-1, step), 0, dtype=np.uint8).reshape(-1)
    if kind == 2:                                                     # above
        return row + above
    if kind not in (3, 4):
        raise ValueError(f"PNG has no filter {kind}")
    out = [0] * step + row.tolist()
    up = [0] * step + above.tolist()
    for at in range(step, len(out)):
        a, b, c = out[at - step], up[at], up[at - step]
        out[at] = (out[at] + ((a + b) // 2 if kind == 3 else _paeth(a, b, c))) & 255
    return np.array(out[step:], np.uint8)


def _paeth(a: int, b: int, c: int) -> int:
    """The neighbour that is nearest to a + b - c."""
    near_a, near_b, near_c = abs(b - c), abs(a - c), abs(a + b - 2 * c)
    if near_a <= near_b and near_a <= near_c:
        return a
    return b if near_b <= near_c else c


def _decode_netpbm(content: bytes, header: re.Match[bytes]) -> Pixels:
    """PGM (P5, gray) and PPM (P6, colours), in binary."""
    form, width, height, most = (int(part) for part in header.groups())
    channels = 3 if form == 6 else 1
    if most != 255:
        raise ValueError(f"the largest value is {most}; it should be 255")
    pixels = np.frombuffer(content, np.uint8, height * width * channels, header.end())
    return np.ascontiguousarray(np.broadcast_to(pixels.reshape(height, width, channels), (height, width, 3)))


def _by_pillow(path: Path) -> Pixels:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ValueError("it is neither PNG nor PGM nor PPM. Convert it, or read more formats by `pip install pillow`"
                         ) from None
    try:
        with Image.open(path) as image:
            return np.array(image.convert("RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(str(error)) from None
