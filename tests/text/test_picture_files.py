"""Picture files: PNG by its definition, with every filter and colour type; PGM and PPM; what is no picture."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from chainrule.errors import UserError
from chainrule.text.generated import Shapes
from chainrule.text.pictures import read_picture, resize

PICTURE = np.random.default_rng(3).integers(0, 256, (7, 5, 3), np.uint8)


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(pixels: np.ndarray, colour: int, filters: list[int], more: bytes = b"", depth: int = 8) -> bytes:
    """Written from the definition: each byte minus what its neighbours predict."""
    height, width, step = pixels.shape
    data, before = b"", np.zeros(width * step, int)
    for number, row in enumerate(pixels.reshape(height, -1).astype(int)):
        kind = filters[number % len(filters)]
        left, corner = (np.concatenate([np.zeros(step, int), part[:-step]]) for part in (row, before))
        guess = left + before - corner
        near = np.stack([abs(guess - left), abs(guess - before), abs(guess - corner)]).argmin(0)
        paeth = np.choose(near, [left, before, corner])
        prediction = [0 * row, left, before, (left + before) // 2, paeth][kind]
        data += bytes([kind]) + ((row - prediction) % 256).astype(np.uint8).tobytes()
        before = row
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    packed = zlib.compress(data)
    parts = [chunk(b"IHDR", head), more, chunk(b"IDAT", packed[:9]), chunk(b"IDAT", packed[9:]), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def read(folder: Path, content: bytes, name: str = "a.png") -> np.ndarray:
    (folder / name).write_bytes(content)
    return read_picture(folder / name)


@pytest.mark.parametrize("filters", [[0], [1], [2], [3], [4], [4, 2, 0, 3, 1]])
def test_png_with_every_filter(tmp_path: Path, filters: list[int]) -> None:
    np.testing.assert_array_equal(read(tmp_path, png(PICTURE, 2, filters)), PICTURE)


def test_png_of_other_colour_types(tmp_path: Path) -> None:
    gray = PICTURE[..., :1]
    np.testing.assert_array_equal(read(tmp_path, png(gray, 0, [4])), gray.repeat(3, -1))
    half = np.full_like(gray, 128)
    seen = read(tmp_path, png(np.concatenate([PICTURE, half], -1), 6, [3]))
    np.testing.assert_array_equal(seen, (PICTURE.astype(int) * 128 // 255))
    palette, index = PICTURE.reshape(-1, 3)[:20], gray % 20
    found = read(tmp_path, png(index, 3, [1], chunk(b"PLTE", palette.tobytes())))
    np.testing.assert_array_equal(found, palette[index[..., 0]])


def test_pgm_and_ppm(tmp_path: Path) -> None:
    np.testing.assert_array_equal(read(tmp_path, b"P6\n# ours\n5 7\n255\n" + PICTURE.tobytes(), "a.ppm"), PICTURE)
    gray = PICTURE[..., 0]
    np.testing.assert_array_equal(read(tmp_path, b"P5 5 7 255\n" + gray.tobytes())[..., 2], gray)


@pytest.mark.parametrize(("content", "said"), [
    (b"not a picture", "is not a picture that can be read: "),
    (png(PICTURE, 2, [0])[:90], "the PNG file is cut off"),
    (png(PICTURE, 2, [0], depth=16), "PNG of 16 bits a channel; it should be 8 bits, plain"),
    (b"\x89PNG\r\n\x1a\n", "a PNG file without a header"),
    (b"P6 5 7 65535\n" + PICTURE.tobytes(), "the largest value is 65535; it should be 255"),
    (b"P6 5 70 255\n" + PICTURE.tobytes(), "is not a picture that can be read: "),
])  # fmt: skip
def test_what_is_no_picture_is_said_in_a_line(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        read(tmp_path, content)
    assert "\n" not in str(error.value)


def test_a_missing_picture_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no picture .*none.png: No such file"):
        read_picture(tmp_path / "none.png")


def test_resizing_keeps_a_plain_picture_plain() -> None:
    plain = np.full((6, 4, 3), (10, 200, 77), np.uint8)
    np.testing.assert_array_equal(resize(plain, 3, 5), np.full((3, 5, 3), (10, 200, 77)))


def test_a_caption_says_what_is_on_the_picture() -> None:
    """Of the two shapes of a pair, the one named first is above the other, or left of it; by its colour."""
    shapes = Shapes()
    pictures, captions = shapes.make(150, 5)
    checked = 0
    for picture, caption in zip(pictures, captions):
        words = caption.split()
        names = [words[2], words[-2]]
        if "a" not in words[3:] or names[0] == names[1]:
            continue
        centres = []
        for name in names:
            near = np.abs(picture.astype(int) - np.array(shapes.colours[name]) - shapes.noise // 2).max(-1)
            centres.append(np.argwhere(near <= shapes.noise // 2 + 1).mean(0))
        down, right = centres[1] - centres[0]
        assert (down if "above" in words else right) > 0
        assert (abs(down) > abs(right)) == ("above" in words)
        checked += 1
    assert checked > 40
    assert (pictures == shapes.make(150, 5)[0]).all()
