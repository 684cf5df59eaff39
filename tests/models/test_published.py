"""The published sizes against the papers' tables: counts of parameters alone would not notice wrong head counts."""

import pytest

from chainrule.models.published import PUBLISHED
from chainrule.tasks import recipe_for

TABLE = {                                       # layers, width, heads, head size, context
    "gpt1": (12, 768, 12, 64, 512),             # Radford et al. 2018, section 4.1
    "gpt2": (12, 768, 12, 64, 1024),            # Radford et al. 2019, table 2; its heads have 64 numbers, as GPT's do
    "gpt2-medium": (24, 1024, 16, 64, 1024),
    "gpt2-large": (36, 1280, 20, 64, 1024),
    "gpt2-xl": (48, 1600, 25, 64, 1024),
    "gpt3-small": (12, 768, 12, 64, 2048),      # Brown et al. 2020, table 2.1
    "gpt3-medium": (24, 1024, 16, 64, 2048),
    "gpt3-large": (24, 1536, 16, 96, 2048),
    "gpt3-xl": (24, 2048, 16, 128, 2048),       # the table prints 24 heads, which does not give its 1.3B parameters
    "gpt3-2.7b": (32, 2560, 32, 80, 2048),
    "gpt3-6.7b": (32, 4096, 32, 128, 2048),
    "gpt3-13b": (40, 5140, 40, 128, 2048),
    "gpt3-175b": (96, 12288, 96, 128, 2048),
}


def test_every_published_size_is_in_the_table() -> None:
    assert TABLE.keys() == PUBLISHED.keys()


@pytest.mark.parametrize("name", TABLE)
def test_a_published_size_is_that_of_the_paper(name: str) -> None:
    model = recipe_for(name, {}, "lm").model
    assert (model.layers, model.width, model.heads, model.head_size, model.context) == TABLE[name]
    assert model.kv_heads == model.heads


def test_the_texts_and_batches_are_those_of_the_papers() -> None:
    assert PUBLISHED["gpt1"].preset["train.tokens"] == 64 * 512
    batches = {name: size.preset["train.tokens"] for name, size in PUBLISHED.items() if name.startswith("gpt3")}
    millions = {name: round(tokens / 1e6, 1) for name, tokens in batches.items()}
    assert millions == {"gpt3-small": 0.5, "gpt3-medium": 0.5, "gpt3-large": 0.5, "gpt3-xl": 1.0, "gpt3-2.7b": 1.0,
                        "gpt3-6.7b": 2.1, "gpt3-13b": 2.1, "gpt3-175b": 3.2}
    assert {size.tokens for name, size in PUBLISHED.items() if name.startswith("gpt3")} == {300e9}
