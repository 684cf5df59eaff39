"""Generated sets of examples, one for each task that has no text of its own: the same seed makes the same files.

    motion    frames of video in which a dot moves over a grid, each with its direction       --task tag
    shapes    pictures of shapes, and what is on them: "a small red circle above a large blue square"    --task caption
    facts     short stories, and questions about who is where and who has what                --task answer
    entities  sentences with the names of people, places and companies, as BIO tags           --task tag
    smalltalk chats of a few turns: opposites, colours, capitals, counting, and the user's name    --task chat

Shapes: N examples, T frames, H x W pixels.
"""

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from random import Random
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


class Shapes(ExampleSet):
    """One shape, two of which one is named by where it stands, or some that are alike."""

    name = "shapes"
    idea = "pictures of coloured shapes, each with a caption: a small red circle above a large blue square"
    suffixes = ("npy", "txt")
    sizes: ClassVar[Mapping[str, int]] = {"train": 6000, "valid": 300, "test": 1000}
    total = 12_898_293
    side, noise, margin = 24, 30, 3        # pixels; gray levels of the noise; pixels by which two shapes are apart
    radii: ClassVar[Mapping[str, int]] = {"small": 2, "large": 4}
    numbers: ClassVar[Mapping[str, int]] = {"two": 2, "three": 3, "four": 4}
    colours: ClassVar[Mapping[str, tuple[int, int, int]]] = {
        "red": (200, 30, 30), "green": (30, 180, 30), "blue": (40, 60, 220), "yellow": (210, 200, 30),
        "white": (210, 210, 210), "purple": (150, 30, 190),
    }
    outlines: ClassVar[tuple[str, ...]] = ("circle", "square", "triangle", "cross")

    def files(self, count: int, seed: int) -> tuple[bytes, bytes]:
        pictures, captions = self.make(count, seed)
        return npy(pictures), lines(captions)

    def make(self, count: int, seed: int) -> tuple[NDArray[np.uint8], list[str]]:
        """(N, H, W, 3) and the captions."""
        random = np.random.default_rng([seed, 24])
        made = [self._scene(random) for _ in range(count)]
        return np.stack([picture for picture, _ in made]), [caption for _, caption in made]

    def _scene(self, random: np.random.Generator) -> tuple[NDArray[np.uint8], str]:
        kind = ("one", "pair", "pair", "pair", "many")[random.integers(5)]
        number = 0 if kind != "many" else int(random.integers(2, 5))
        first = self._thing(random, ("small",) if number > 2 else tuple(self.radii))
        if kind == "one":
            return self._drawn(random, [first], self._places(random, [first])), self._named(first)
        if kind == "many":
            word = next(word for word, value in self.numbers.items() if value == number)
            things = [first] * number
            return self._drawn(random, things, self._places(random, things)), f"{word} {' '.join(first)}s".replace(
                "crosss", "crosses")
        things = [first, self._thing(random, tuple(self.radii))]
        while True:
            places = self._places(random, things)
            across = places[1] - places[0]                                # rows, columns
            if abs(abs(across[0]) - abs(across[1])) >= self.margin:       # it is clear which of the two words holds
                break
        axis = int(abs(across[1]) > abs(across[0]))
        ahead = things if across[axis] > 0 else things[::-1]
        between = ("above", "left of")[axis]
        return self._drawn(random, things, places), f"{self._named(ahead[0])} {between} {self._named(ahead[1])}"

    def _thing(self, random: np.random.Generator, sizes: Sequence[str]) -> tuple[str, str, str]:
        """Size, colour, outline."""
        colours = list(self.colours)
        chosen = random.integers((len(sizes), len(colours), len(self.outlines))).tolist()
        return sizes[chosen[0]], colours[chosen[1]], self.outlines[chosen[2]]

    def _named(self, thing: tuple[str, str, str]) -> str:
        return f"a {' '.join(thing)}"

    def _places(self, random: np.random.Generator, things: Sequence[tuple[str, str, str]]) -> NDArray[np.int64]:
        """Centres at which no two things touch."""
        radii = np.array([self.radii[size] for size, _, _ in things])
        while True:
            places = random.integers(radii[:, None], self.side - radii[:, None], (len(things), 2))
            apart = np.abs(places[:, None] - places).max(-1) - radii - radii[:, None]
            if (apart[~np.eye(len(things), dtype=bool)] > 1).all():
                return places

    def _drawn(
        self, random: np.random.Generator, things: Sequence[tuple[str, str, str]], places: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        pixels = random.integers(0, self.noise, (self.side, self.side, 3))
        rows, columns = np.indices((self.side, self.side))
        for (size, colour, outline), (row, column) in zip(things, places.tolist()):
            inside = self._inside(outline, rows - row, columns - column, self.radii[size])
            pixels[inside] += self.colours[colour]
        return pixels.astype(np.uint8)

    def _inside(self, outline: str, down: NDArray[Any], right: NDArray[Any], radius: int) -> NDArray[np.bool_]:
        """Which pixels are within an outline, by their distance from its centre."""
        box = np.maximum(abs(down), abs(right)) <= radius
        if outline == "circle":
            box = down**2 + right**2 <= radius**2 + radius // 2
        elif outline == "triangle":
            box &= 2 * abs(right) <= down + radius
        elif outline == "cross":
            box &= np.minimum(abs(down), abs(right)) <= radius // 4
        found: NDArray[np.bool_] = box
        return found


class Facts(ExampleSet):
    """Each person of a story is in a place or has a thing; a question asks for one of the two sides."""

    name = "facts"
    idea = "short stories and questions about them: who is in the kitchen? what does Anna have?"
    suffixes = ("jsonl",)
    sizes: ClassVar[Mapping[str, int]] = {"train": 4000, "valid": 200, "test": 500}
    total = 797_142
    people: ClassVar[tuple[str, ...]] = (
        "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas", "Karla", "Leo",
    )
    places: ClassVar[tuple[str, ...]] = ("kitchen", "garden", "hall", "office", "cellar", "attic", "school", "park")
    things: ClassVar[tuple[str, ...]] = ("ball", "book", "key", "lamp", "apple", "coat", "map", "drum")
    looks: ClassVar[tuple[str, ...]] = ("red", "green", "blue", "small", "heavy")

    def files(self, count: int, seed: int) -> tuple[bytes]:
        random = Random(f"{self.name} {seed}")
        return (lines([json.dumps(self.example(random)) for _ in range(count)]),)

    def example(self, random: Random) -> dict[str, Any]:
        """Four facts in random order, of which one is asked for."""
        people = random.sample(self.people, 4)
        places, things = random.sample(self.places, 2), random.sample(self.things, 2)
        wares = [f"{random.choice(self.looks)} {thing}" for thing in things]
        facts = [(f"{person} is in the {place} .", (f"Who is in the {place} ?", person),
                  (f"Where is {person} ?", f"in the {place}")) for person, place in zip(people, places)]
        facts += [(f"{person} has a {ware} .", (f"Who has the {ware.split()[1]} ?", person),
                   (f"What does {person} have ?", f"a {ware}")) for person, ware in zip(people[2:], wares)]
        random.shuffle(facts)
        question, answer = random.choice(random.choice(facts)[1:])
        return {"question": question, "context": " ".join(sentence for sentence, *_ in facts), "answers": [answer]}


class Entities(ExampleSet):
    """Templates with names, most of which occur in one split only."""

    name = "entities"
    idea = "sentences with names of people, places and companies, tagged as BIO"
    suffixes = ("txt",)
    sizes: ClassVar[Mapping[str, int]] = {"train": 800, "valid": 100, "test": 300}
    total = 94_068
    templates: ClassVar[tuple[str, ...]] = (
        "PER lives in LOC .", "ORG hired PER in LOC .", "in LOC , PER met PER .", "PER left ORG for ORG .",
        "the office of ORG in LOC was closed .", "PER and PER work for ORG .", "ORG sold a house to PER .",
        "nobody in LOC knows PER .", "the train to LOC was late .", "yesterday it rained .",
    )
    first: ClassVar[tuple[str, ...]] = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo")
    syllables: ClassVar[tuple[str, ...]] = (
        "ber", "lin", "mar", "tor", "kel", "san", "dor", "wi", "ra", "no", "zel", "fu",
    )
    ends: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "PER": ("son", "mann", "er"), "LOC": ("burg", "stadt", "ford"), "ORG": ("Inc", "Bank", "Works"),
    }

    def files(self, count: int, seed: int) -> tuple[bytes]:
        random = Random(f"{self.name} {seed}")
        rows = ("".join(f"{word}\t{tag}\n" for word, tag in self.sentence(random)) for _ in range(count))
        return (lines(list(rows)),)

    def sentence(self, random: Random) -> list[tuple[str, str]]:
        pairs: list[tuple[str, str]] = []
        for word in random.choice(self.templates).split():
            name = self._name(random, word) if word in self.ends else [word]
            tags = ["O"] if word not in self.ends else [f"B-{word}", *[f"I-{word}"] * (len(name) - 1)]
            pairs += zip(name, tags)
        return pairs

    def _name(self, random: Random, kind: str) -> list[str]:
        stem = "".join(random.choice(self.syllables) for _ in range(3)).capitalize()
        end = random.choice(self.ends[kind])
        if kind == "PER":
            return [*([random.choice(self.first)] if random.random() < 0.7 else []), stem + end]
        if kind == "LOC":
            return [*(["New"] if random.random() < 0.3 else []), stem + end]
        return [stem, end]


class SmallTalk(ExampleSet):
    """Each chat asks a few unrelated things; in half of them the user says a name first, and asks for it at the end."""

    name = "smalltalk"
    idea = "chats of a few turns: opposites, colours, capitals, counting, and the name of the user"
    suffixes = ("jsonl",)
    sizes: ClassVar[Mapping[str, int]] = {"train": 3000, "valid": 100, "test": 200}
    total = 842_310
    names: ClassVar[tuple[str, ...]] = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo")
    capitals: ClassVar[Mapping[str, str]] = {
        "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Egypt": "Cairo", "Peru": "Lima",
        "Kenya": "Nairobi", "Norway": "Oslo", "Greece": "Athens", "Austria": "Vienna",
    }
    opposites: ClassVar[tuple[tuple[str, str], ...]] = (
        ("hot", "cold"), ("big", "small"), ("up", "down"), ("old", "new"), ("fast", "slow"), ("dark", "light"),
    )
    colours: ClassVar[Mapping[str, str]] = {
        "the sky": "blue", "grass": "green", "snow": "white", "a tomato": "red", "a lemon": "yellow", "coal": "black",
    }

    def files(self, count: int, seed: int) -> tuple[bytes]:
        random = Random(f"{self.name} {seed}")
        return (lines([json.dumps({"messages": self.chat(random)}) for _ in range(count)]),)

    def chat(self, random: Random) -> list[dict[str, str]]:
        turns = [self.turn(random) for _ in range(random.choice((1, 2, 2)))]
        if random.random() < 0.5:
            name = random.choice(self.names)
            asked = "What is my name?", f"Your name is {name}."
            turns = [(f"My name is {name}.", f"Hello, {name}!"), *turns[1:], asked]
        return [{"role": role, "content": content} for turn in turns for role, content in
                zip(("user", "assistant"), turn)]

    def turn(self, random: Random) -> tuple[str, str]:
        """A question and its answer."""
        kind = random.randrange(4)
        if kind == 0:
            country, city = random.choice(list(self.capitals.items()))
            return f"What is the capital of {country}?", f"The capital of {country} is {city}."
        if kind == 1:
            one, other = random.choice(self.opposites)[:: random.choice((1, -1))]
            return f"What is the opposite of {one}?", f"The opposite of {one} is {other}."
        if kind == 2:
            thing, colour = random.choice(list(self.colours.items()))
            return f"What colour is {thing}?", f"{thing.capitalize()} is {colour}."
        first = random.randrange(1, 6)
        last = first + random.randrange(2, 5)
        return f"Count from {first} to {last}.", " ".join(map(str, range(first, last + 1)))


EXAMPLE_SETS: Mapping[str, ExampleSet] = {
    made.name: made for made in (Motion(), Shapes(), Facts(), Entities(), SmallTalk())
}
