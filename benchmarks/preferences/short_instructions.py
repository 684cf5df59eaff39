"""Some hundreds of short instructions, made from templates, for benchmarks that tune a chat model."""

import random

TOPICS = (
    "the moon", "volcanoes", "honey bees", "rainbows", "glaciers", "chess", "the violin", "bread", "tea", "bicycles",
    "bridges", "lighthouses", "libraries", "clocks", "glass", "salt", "rivers", "tides", "whales", "owls", "sleep",
    "vaccines", "magnets", "money", "potatoes",
)  # fmt: skip
COUNTRIES = (
    "France", "Japan", "Egypt", "Canada", "Brazil", "Kenya", "Norway", "Peru", "India", "Italy", "Mexico", "Poland",
    "Greece", "Vietnam", "Portugal", "Cuba", "Ireland", "Turkey", "Chile", "Spain", "Austria", "Nepal", "Ghana",
    "Iceland", "Finland",
)  # fmt: skip
ACTIONS = (
    "boil an egg", "tie a tie", "plant a tree", "clean a window", "fold a shirt", "bake bread", "sharpen a pencil",
    "pack a suitcase", "learn a language", "save money", "sleep better", "remember names", "train a dog",
    "grow tomatoes", "read faster", "paint a wall", "fix a flat tyre", "start running", "cook rice", "learn to swim",
    "take good photographs", "stay warm in winter", "find my way without a map", "keep flowers fresh", "write clearly",
)  # fmt: skip
TOOLS = (
    "a hammer", "a compass", "a thermometer", "an umbrella", "a microscope", "a sieve", "a ladder", "a kettle",
    "an anchor", "a zip", "a lens", "a pulley", "a calendar", "a key", "a whistle", "a needle", "a saddle", "a lantern",
    "a bell", "a spade", "a mirror", "a candle", "a rope", "a wheel", "a dictionary",
)  # fmt: skip
WORDS = (
    "brave", "curious", "fragile", "ancient", "gentle", "honest", "lazy", "noisy", "patient", "rapid", "silent",
    "generous", "humble", "stubborn", "vivid", "weary", "clumsy", "eager", "hollow", "modest", "proud", "rare",
    "sincere", "tidy", "witty",
)  # fmt: skip
NAMES = (
    "a small bakery", "a black cat", "a sailing boat", "a school newspaper", "a chess club", "a garden of herbs",
    "a robot that sweeps floors", "a mountain hut", "a choir", "a bookshop", "a racing bicycle", "a café by the sea",
    "a quiz team", "a new colour of paint", "a puppet theatre", "a weather app", "a shy dragon", "a football team",
    "a kind of cheese", "a museum of clocks", "a toy train", "a detective", "a perfume", "a band", "a pet tortoise",
)  # fmt: skip
TEMPLATES = {
    "Write one sentence about {}.": TOPICS,
    "Write a headline about {}.": TOPICS,
    "Tell me one fact about {}.": TOPICS,
    "Ask me a question about {}.": TOPICS,
    "What is the capital of {}?": COUNTRIES,
    "Name a city in {}.": COUNTRIES,
    "In one sentence, how do I {}?": ACTIONS,
    "Give me one tip: I want to {}.": ACTIONS,
    "Name one use of {}.": TOOLS,
    "Describe {} in one sentence.": TOOLS,
    "Use the word {} in a sentence.": WORDS,
    "What is the opposite of {}?": WORDS,
    "Suggest a name for {}.": NAMES,
}


def short_instructions(seed: int = 1) -> list[str]:
    """All of them, in an order that the seed decides."""
    every = [template.format(filler) for template, fillers in TEMPLATES.items() for filler in fillers]
    random.Random(seed).shuffle(every)
    return every
