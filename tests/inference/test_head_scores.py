"""A head's scores are what their definitions say: by hand for given patterns, and for a model whose weights are set."""

import numpy as np
import pytest
import torch

from chainrule.inference.analysis.head_scores import (
    ANTECEDENTS,
    TITLES,
    HeadScores,
    induction_score,
    known_sentences,
    patterns,
    position_scores,
    repeated_rows,
    same_token_score,
    score_heads,
    span_score,
)
from chainrule.models.encoder import EncoderSettings, TransformerEncoder
from chainrule.models.gpt import GPT
from chainrule.recipe import Text
from chainrule.text.tokenizers.tokenizer import train_tokenizer

TAPS = ["stack.blocks.0.attention.pattern"]


def test_scores_of_a_pattern_by_hand():
    pattern = torch.tensor([[
        [1.0, 0.0, 0.0, 0.0],
        [0.6, 0.4, 0.0, 0.0],
        [0.1, 0.7, 0.2, 0.0],
        [0.2, 0.3, 0.4, 0.1],
    ]])
    scores = {name: float(score[0]) for name, score in position_scores(pattern).items()}
    assert scores == pytest.approx({"previous": (0.6 + 0.7 + 0.4) / 3, "current": 1.7 / 4, "next": 0, "first": 0.9 / 3})
    assert float(same_token_score(pattern, torch.tensor([5, 6, 5, 5]))[0]) == pytest.approx((0.1 + 0.2 + 0.4) / 2)
    assert same_token_score(pattern, torch.tensor([5, 6, 7, 8])) is None
    assert float(span_score(pattern, slice(2, 4), slice(0, 2))[0]) == pytest.approx((0.8 + 0.5) / 2)


def test_where_both_sides_are_seen_an_equal_token_may_come_later():
    pattern = torch.tensor([[[0.2, 0.3, 0.5], [0.1, 0.1, 0.8], [0.4, 0.3, 0.3]]])
    assert float(position_scores(pattern)["next"][0]) == pytest.approx((0.3 + 0.8) / 2)
    assert float(same_token_score(pattern, torch.tensor([5, 6, 5]))[0]) == pytest.approx((0.5 + 0.4) / 2)


def test_an_induction_head_attends_to_what_followed():
    """Rows 0 a b c a b c: the second a attends to the first b, at place 2, and so on."""
    pattern = torch.zeros(2, 1, 7, 7)
    for query, key in ((4, 2), (5, 3), (6, 4)):
        pattern[0, 0, query, key] = 0.9
        pattern[1, 0, query, key] = 0.3
    assert float(induction_score(pattern, 3)[0]) == pytest.approx(0.6)


def test_a_head_bears_the_name_of_its_largest_score_from_one_half_on():
    def named(**scores):
        return HeadScores(1, 1, dict.fromkeys(TITLES) | scores).name

    assert named(previous=0.7, induction=0.8) == "induction"
    assert named(previous=0.5) == "previous token"
    assert named(previous=0.49, first=0.4) is None


def tokenizer(unit="words"):
    text = "".join("".join(parts) + "\n" for parts in ANTECEDENTS) * 2
    return train_tokenizer(Text(tokenizer=unit), [text])


def shifted_gpt(vocab, offset):
    """One head that attends to the token `offset` places before, by its position alone; its weights are set by hand.

    A position is a unit vector; a key is the position of its token, a query that of the place to attend to.
    """
    size = 64
    settings = GPT.Settings(layers=1, width=size, heads=1, context=size, positions="learned", qk_norm=False,
                            norm_embedding=False, tied=False)
    model = GPT(settings, vocab)
    with torch.no_grad():
        model.embedding.tokens.weight.zero_()
        model.embedding.positions.weight.copy_(torch.eye(size))
        query = torch.eye(size).roll(offset, 1)                       # row t - offset has a 1 in column t
        model.stack.blocks[0].attention.project.weight[:size] = 8 * query
        model.stack.blocks[0].attention.project.weight[size : 2 * size] = torch.eye(size)
    return model.eval()


@pytest.mark.parametrize(("offset", "name"), [(1, "previous token"), (0, "current token")])
def test_a_head_whose_weights_are_set_is_found(offset, name):
    words = tokenizer()
    model = shifted_gpt(len(words), offset)
    tokens = [0, *words.encode("the man saw the dog and he went home").tolist()]
    (head,) = score_heads(model, words, lambda rows: model.step(rows, model.start(len(rows))), TAPS, tokens, 64)
    assert head.name == name
    assert head.scores[name.split()[0]] > 0.95
    assert head.scores["induction"] < 0.02
    assert head.scores["antecedent"] < 0.02
    assert head.as_dict()["name"] == name


def test_repeated_rows_are_two_halves_of_different_tokens():
    rows = repeated_rows(tokenizer(), context=21)
    assert rows.shape == (8, 21)
    assert (rows[:, 1:11] == rows[:, 11:]).all()
    assert (rows[:, 0] == 0).all()
    assert all(len(set(row[1:11])) == 10 for row in rows.tolist())
    assert (repeated_rows(tokenizer(), 21) == rows).all()
    assert repeated_rows(tokenizer(), context=4) is None


@pytest.mark.parametrize("unit", ["words", "characters", "bpe"])
def test_nouns_and_pronouns_are_found_in_their_sentences(unit):
    made = tokenizer(unit)
    found = known_sentences(made)
    assert len(found) == len(ANTECEDENTS)
    for (tokens, pronoun, noun), (_, thing, _, stands_for_it, _) in zip(found, ANTECEDENTS):
        assert made.decode(tokens[noun]).strip() == thing
        assert made.decode(tokens[pronoun]).strip() == stands_for_it


def test_sentences_with_unknown_words_are_left_out():
    few = train_tokenizer(Text(tokenizer="words"), ["the man saw he it\n" * 3])
    assert [few.decode(tokens[noun]) for tokens, _, noun in known_sentences(few)] == ["man"]


def test_a_closed_alphabet_without_letters_knows_no_sentence():
    assert known_sentences(train_tokenizer(Text(tokenizer="symbols"), ["([])"])) == []


def test_an_encoder_has_no_induction_and_other_scores_as_written_out():
    words = tokenizer()
    torch.manual_seed(1)
    model = TransformerEncoder(EncoderSettings(layers=2, width=16, heads=2, context=40), len(words)).eval()
    tokens = [0, *words.encode("the man saw the dog").tolist(), 0]
    taps = [f"stack.blocks.{layer}.attention.pattern" for layer in range(2)]
    every = score_heads(model, words, model.encode, taps, tokens, 40)
    assert [(head.layer, head.head) for head in every] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert {head.scores["induction"] for head in every} == {None}
    seen = patterns(model, model.encode, taps, np.array([tokens]))
    for head in every:
        weights = seen[head.layer - 1][0, head.head - 1].numpy()
        loop = np.mean([weights[place, place - 1] for place in range(1, len(tokens))])
        assert head.scores["previous"] == pytest.approx(loop, rel=1e-5)
        found = [sum(weights[place, other] for other in range(len(tokens)) if other != place and tokens[other] == token)
                 for place, token in enumerate(tokens) if tokens.count(token) > 1]
        assert head.scores["same"] == pytest.approx(np.mean(found), rel=1e-5)
