"""Generated sets of examples, one for each task that has no text of its own: the same seed makes the same files.

    motion    frames of video in which a dot moves over a grid, each with its direction       --task tag

One frame alone cannot tell the direction, and in some frames the dot is hidden.

Shapes: N examples, T frames, H x W pixels.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

EXAMPLES_VERSION = 1        # goes up when a set changes


class ExampleSet:
    """Examples of a task, made by a rule."""

    name: ClassVar[str]
    idea: ClassVar[str]                                # one line for the catalogue
    suffixes: ClassVar[tuple[str, ...]]                # of the files of a split
    sizes: ClassVar[Mapping[str, int]]                 # examples of each split
    total: ClassVar[int]                               # bytes of all files

    def files(self, count: int, seed: int) -> Sequence[bytes]:
        """The content of each file of a split of `count` examples."""
        raise NotImplementedError


def npy(array: NDArray[Any]) -> bytes:
    """An array as the content of an NPY file."""
    file = BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def lines(texts: Sequence[str]) -> bytes:
    return "".join(text + "\n" for text in texts).encode()


class Motion(ExampleSet):
    """A dot moves by one pixel a frame, or rests. It keeps its direction most of the time, and is sometimes hidden."""

    name = "motion"
    idea = "frames of a dot that moves over a grid, each with its direction; one frame alone cannot tell it"
    suffixes = ("npy", "txt")
    sizes: ClassVar[Mapping[str, int]] = {"train": 3000, "valid": 300, "test": 500}
    total = 958_396
    steps: ClassVar[Mapping[str, tuple[int, int]]] = {    # direction -> rows and columns of a step; the grid is a torus
        "still": (0, 0), "up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1),
    }
    frames, grid = 12, 4
    keeps, hidden, noise = 0.75, 0.15, 40                # probabilities; gray levels of the noise, out of 255

    def files(self, count: int, seed: int) -> tuple[bytes, bytes]:
        frames, directions = self.make(count, seed)
        names = list(self.steps)
        return npy(frames), lines([" ".join(names[number] for number in row) for row in directions.tolist()])

    def make(self, count: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """(N, T, H · W) gray levels, and (N, T): the direction of the step that led to each frame."""
        random = np.random.default_rng([seed, 16])
        directions = random.integers(0, len(self.steps), (count, self.frames))
        keeps = random.random((count, self.frames)) < self.keeps
        for now in range(1, self.frames):
            directions[:, now] = np.where(keeps[:, now], directions[:, now - 1], directions[:, now])
        moves = np.array(list(self.steps.values()))[directions]                      # (N, T, 2)
        places = (random.integers(0, self.grid, (count, 1, 2)) + np.cumsum(moves, 1)) % self.grid
        pixels = random.integers(0, self.noise, (count, self.frames, self.grid**2))
        light = random.integers(150, 196, (count, self.frames)) * (random.random((count, self.frames)) >= self.hidden)
        example, frame = np.indices((count, self.frames))
        pixels[example, frame, places[..., 0] * self.grid + places[..., 1]] += light
        return pixels.astype(np.uint8), directions


EXAMPLE_SETS: Mapping[str, ExampleSet] = {made.name: made for made in (Motion(),)}
