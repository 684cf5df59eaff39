"""Blanks are found, and filled by the most probable token, that of the most certain blank first."""

import numpy as np
import pytest
import torch

from chainrule.errors import UserError
from chainrule.inference.fill_in import (
    Cloze,
    EndDecoder,
    SpanDecoder,
    encode_cloze,
    fill_blanks,
    possible_fills,
    read_cloze,
)
from chainrule.inference.row_scores import mean_over_rows, summarise_rows
from chainrule.model import Batch
from chainrule.models.encoder import EncoderSettings, TransformerEncoder
from chainrule.recipe import Text
from chainrule.tasks.denoise import MASK, sentence_ends
from chainrule.text.tables import Place
from chainrule.text.tokenizers.tokenizer import train_tokenizer

HERE = Place("lines.txt", 3)
TEXT = "the cat sat on the mat .\nthe dog sat on the cat !\n" * 20


def tokenizer(unit="words", **settings):
    return train_tokenizer(Text(tokenizer=unit, **settings), [TEXT]).with_special([MASK])


def encoder(vocab, seed=1, **settings):
    torch.manual_seed(seed)
    model = TransformerEncoder(EncoderSettings(layers=2, width=16, heads=2, context=24, **settings), vocab)
    for parameter in model.parameters():
        parameter.data += 0.5 * torch.randn(parameter.shape)
    return model.eval()


@pytest.mark.parametrize(("line", "pieces"), [
    ("the ___ sat", ("the ", " sat")),
    ("___ sat [MASK]", ("", " sat ", "")),
    ("snake_case and __init__ stay, ______ goes", ("snake_case and __init__ stay, ", " goes")),
])
def test_blanks_are_three_underscores_or_a_mask(line, pieces):
    assert read_cloze(line, HERE, tokenizer()).pieces == pieces


def test_a_line_without_a_blank_is_refused():
    with pytest.raises(UserError, match=r"lines.txt line 3 has no blank: write ___ or \[MASK\]"):
        read_cloze("the cat", HERE, tokenizer())


def test_where_tokens_begin_with_a_space_it_is_part_of_the_blank():
    bpe = tokenizer("bpe", vocab=300)
    cloze = read_cloze("the ___ sat", HERE, bpe)
    assert cloze.pieces == ("the", " sat")
    assert cloze.filled([" cat"]) == "the cat sat"
    assert read_cloze("the ___ sat", HERE, tokenizer("characters")).pieces == ("the ", " sat")


def test_a_cloze_is_encoded_piece_by_piece():
    words = tokenizer()
    mask = words.id(MASK)
    found = encode_cloze(Cloze(("the ", " sat on ", ""), HERE), words, [mask, mask])
    assert found == [*words.encode("the"), mask, *words.encode("sat on"), mask]
    assert encode_cloze(Cloze(("the ", " sat"), HERE), words, [7, 8, 9])[1:] == [7, *words.encode("sat")]


def by_hand(model, words, tokens, places, possible):
    """The most certain of the blanks, one at a time, each time from the whole row."""
    found, mask = {}, words.id(MASK)
    while len(found) < len(places):
        best = None
        logits = model(Batch(torch.tensor([tokens]), torch.zeros(1, len(tokens), dtype=torch.long)))[0]
        for place in places:
            if place not in found:
                p, token = max((float(logits[place].softmax(-1)[one]), int(one)) for one in possible)
                best = max(best or (-1, 0, 0), (p, place, token))
        found[best[1]] = best
        assert tokens[best[1]] == mask
        tokens[best[1]] = best[2]
    return [(words.decode([found[place][2]]), found[place][0]) for place in places]


@torch.no_grad()
def test_blanks_are_filled_as_by_hand_whatever_stands_in_the_same_batch():
    words = tokenizer()
    model, mask = encoder(len(words)), words.id(MASK)
    lines = ["the ___ sat on the ___ .", "___ dog", "the cat ___ ___ the mat ___"]
    texts = [read_cloze(line, HERE, words) for line in lines]
    found = fill_blanks(model, words, texts, mask, rows=2)
    for cloze, answer in zip(texts, found):
        tokens = [0, *encode_cloze(cloze, words, [mask] * cloze.blanks), 0]
        places = [place for place, token in enumerate(tokens) if token == mask]
        truth = by_hand(model, words, tokens, places, possible_fills(words))
        first = [some[0] for some in answer["alternatives"]]
        assert [one["text"] for one in first] == [text for text, _ in truth]
        assert [one["p"] for one in first] == pytest.approx([p for _, p in truth], rel=1e-4)
        assert answer["answer"] == cloze.filled([text for text, _ in truth])
        for some in answer["alternatives"]:
            assert [one["p"] for one in some] == sorted((one["p"] for one in some), reverse=True)
            assert len(some) == len(possible_fills(words))


def test_the_boundary_the_unknown_word_and_special_tokens_fill_no_blank():
    words = tokenizer()
    names = {words.token(token) for token in possible_fills(words)}
    assert names == {"the", "cat", "sat", "on", "mat", "dog", ".", "!"}
    assert "\ufffd" not in "".join(tokenizer("bytes").decode([token]) for token in possible_fills(tokenizer("bytes")))


def test_a_text_that_is_too_long_and_a_model_that_diverged_are_refused():
    words = tokenizer()
    model, mask = encoder(len(words)), words.id(MASK)
    with pytest.raises(UserError, match=r"lines.txt line 3 has 33 tokens with its boundaries, and the model holds 24"):
        fill_blanks(model, words, [read_cloze("the " * 30 + "___", HERE, words)], mask)
    model.embedding.tokens.weight.data[mask] = float("nan")
    with pytest.raises(UserError, match="diverged"):
        fill_blanks(model, words, [read_cloze("the ___", HERE, words)], mask)


@torch.no_grad()
def test_logits_of_masked_tokens_are_those_of_all_where_they_are_masked():
    model = encoder(9, transform=True, biases=True, activation="gelu")
    targets = torch.tensor([[-1, 3, -1, 2], [5, -1, 4, -1]])
    batch = Batch(torch.randint(1, 9, (2, 4)), targets, torch.tensor([4, 2]))
    torch.testing.assert_close(model.masked_logits(batch), model(batch)[batch.loss_mask])
    assert len(model.masked_logits(batch)) == 3                        # one is padding


def test_spans_are_found_after_their_sentinels():
    words = train_tokenizer(Text(tokenizer="words"), [TEXT]).with_special(["<|span0|>", "<|span1|>", "<|span2|>"])
    one, two, three = (words.id(f"<|span{number}|>") for number in range(3))
    decoder = SpanDecoder(words, [one, two, three])
    the, cat = words.encode("the cat").tolist()
    assert decoder.decode([one, the, cat, two, cat]) == "<|span0|>the cat<|span1|>cat"
    assert decoder.spans(decoder.decode([one, the, cat, two, cat])) == ["the cat", "cat", ""]
    assert decoder.spans(decoder.decode([two, cat, one, the]), 2) == ["the", "cat"]
    assert decoder.spans(decoder.decode([one, the, one, cat]), 1) == ["the"]        # the first counts
    assert decoder.spans(decoder.decode([cat, the]), 1) == [""]
    assert EndDecoder(words, three).decode((the, cat, three, the)) == "the cat"


def test_sentences_end_with_full_stops():
    words = tokenizer()
    assert {words.token(token) for token in np.flatnonzero(sentence_ends(words))} == {".", "!"}


def test_a_mean_is_over_all_targets_and_its_interval_over_rows():
    rows = np.array([[3.0, 6.0, 4.0], [0.0, 1.0, 1.0], [2.0, 1.0, 5.0]])
    answer = summarise_rows(rows, ("right", "nats"))
    assert answer["accuracy"] == 5 / 10
    assert answer["nats"] == 8 / 10
    assert answer["perplexity"] == pytest.approx(np.exp(0.8))
    assert answer["bits_per_token"] == pytest.approx(0.8 / np.log(2))
    assert answer["tokens"] == 10
    assert answer["accuracy_interval"] == [0, 3 / 4]
    assert mean_over_rows(np.array([[1.0, 2.0]] * 50)).high == 0.5
