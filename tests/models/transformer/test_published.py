"""The published sizes against the papers' tables: counts of parameters alone would not notice wrong head counts."""

from typing import Any

import pytest

from chainrule.models.published import PUBLISHED
from chainrule.plan import PublishedRow, published_table
from chainrule.tasks import first_task, recipe_for

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
    "transformer-base": (6, 512, 8, 64, 512),   # Vaswani et al. 2017, table 3
    "transformer-big": (6, 1024, 16, 64, 512),
    "bert-base": (12, 768, 12, 64, 512),        # Devlin et al. 2019, section 3
    "bert-large": (24, 1024, 16, 64, 512),
    "t5-base": (12, 768, 12, 64, 512),          # Raffel et al. 2020, section 3.1.1
    "gopher-280b": (80, 16384, 128, 128, 2048),    # Hoffmann et al. 2022, table 4
    "lamda-137b": (64, 8192, 128, 128, 2048),   # Thoppilan et al. 2022, section 3
    "mt-nlg-530b": (105, 20480, 128, 160, 2048),   # Smith et al. 2022, section 3.1
    "chinchilla-70b": (80, 8192, 64, 128, 2048),
    "palm-8b": (32, 4096, 16, 256, 2048),       # Chowdhery et al. 2022, table 1
    "palm-62b": (64, 8192, 32, 256, 2048),
    "palm-540b": (118, 18432, 48, 256, 2048),
    "llama-7b": (32, 4096, 32, 128, 2048),      # Touvron et al. 2023, table 2
    "llama-13b": (40, 5120, 40, 128, 2048),
    "llama-33b": (60, 6656, 52, 128, 2048),
    "llama-65b": (80, 8192, 64, 128, 2048),
    "llama3-405b": (126, 16384, 128, 128, 8192),   # Dubey et al. 2024, table 3
}
KV_HEADS = {"palm-8b": 1, "palm-62b": 1, "palm-540b": 1, "llama3-405b": 8}
EXACT = {                                       # the parameters of the weights that were released
    "gpt2": 124_439_808,
    "bert-base": 109_514_298,
    "t5-base": 222_903_552,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-33b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama3-405b": 405_853_388_800,
}
MISSING = {                                     # a matrix in each layer for Transformer-XL's relative positions
    "gopher-280b": 80 * 16384**2,
    "chinchilla-70b": 80 * 8192**2,
}
FLOPS = {                                       # of training, as the papers state them
    "gpt3-175b": 3.14e23, "gopher-280b": 5.76e23, "chinchilla-70b": 5.76e23, "lamda-137b": 3.55e23,
    "palm-540b": 2.56e24, "llama3-405b": 3.8e25,
}


def test_every_published_size_is_in_the_table() -> None:
    assert TABLE.keys() == PUBLISHED.keys()


@pytest.mark.parametrize("name", TABLE)
def test_a_published_size_is_that_of_the_paper(name: str) -> None:
    model = recipe_for(name, {}, first_task(name)).model
    assert (model.layers, model.width, model.heads, model.head_size, model.context) == TABLE[name]
    assert model.kv_heads == KV_HEADS.get(name, model.heads)


@pytest.fixture(scope="module")
def counted() -> dict[str, PublishedRow]:
    return {row.name: row for row in published_table()}


@pytest.mark.parametrize("name", TABLE)
def test_a_published_size_has_the_parameters_of_the_paper(name: str, counted: dict[str, PublishedRow]) -> None:
    parameters = counted[name].parameters + MISSING.get(name, 0)
    assert parameters == pytest.approx(PUBLISHED[name].parameters, rel=0.07 if name.startswith("gpt2") else 0.035)
    assert (name in MISSING) == ("Transformer-XL" in PUBLISHED[name].differs)
    if name in EXACT:
        assert parameters == EXACT[name]


@pytest.mark.parametrize("name", FLOPS)
def test_six_flops_for_each_parameter_and_token_are_those_of_the_papers(name: str, counted: dict[str, Any]) -> None:
    parameters = counted[name].parameters + MISSING.get(name, 0)
    assert 6 * parameters * PUBLISHED[name].tokens == pytest.approx(FLOPS[name], rel=0.13)


def test_the_mix_of_gpt3_is_that_of_table_2_2() -> None:
    """Its weights and sizes are rounded: those of WebText2 and Wikipedia do not give the paper's epochs."""
    mix = PUBLISHED["gpt3-175b"].mix
    assert [part.weight for part in mix] == [0.60, 0.22, 0.08, 0.08, 0.03]
    epochs = {part.text: 300e9 * part.weight / part.tokens for part in mix}
    assert epochs["Common Crawl (filtered)"] == pytest.approx(0.44, abs=0.005)
    assert epochs["Books2"] == pytest.approx(0.43, abs=0.01)
    assert max(abs(epochs[part.text] / part.epochs - 1) for part in mix) < 0.2


def test_the_texts_and_batches_are_those_of_the_papers() -> None:
    assert PUBLISHED["gpt1"].preset["train.tokens"] == 64 * 512
    batches = {name: size.preset["train.tokens"] for name, size in PUBLISHED.items() if name.startswith("gpt3")}
    millions = {name: round(tokens / 1e6, 1) for name, tokens in batches.items()}
    assert millions == {"gpt3-small": 0.5, "gpt3-medium": 0.5, "gpt3-large": 0.5, "gpt3-xl": 1.0, "gpt3-2.7b": 1.0,
                        "gpt3-6.7b": 2.1, "gpt3-13b": 2.1, "gpt3-175b": 3.2}
    assert {size.tokens for name, size in PUBLISHED.items() if name.startswith("gpt3")} == {300e9}
