"""Answers that were cut off have no end; rows of similar length are computed together."""

import json

import pytest
import torch

from chainrule.errors import UserError
from chainrule.model import BOUNDARY, IGNORE, Batch
from chainrule.models.gpt import GPT, DecoderSettings
from chainrule.preferences import log_probs
from chainrule.preferences.answer_task import encode_records
from chainrule.preferences.log_probs import answer_log_probs, answer_sums, similar_lengths
from chainrule.preferences.records import read_pairs, read_rated
from chainrule.tasks import recipe_for
from chainrule.text.sources import Source
from chainrule.text.tokenizers.tokenizer import train_tokenizer

PAIR = {"prompt": "say ", "chosen": "aa", "rejected": "aaaa"}


@pytest.fixture
def read(tmp_path):
    def read(reader, *records):
        file = tmp_path / "pairs.jsonl"
        file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        return list(reader([Source(file)]))

    return read


def test_a_record_says_which_answer_was_cut_off(read):
    whole, cut = read(read_pairs, PAIR, {**PAIR, "chosen_ended": True, "rejected_ended": False})
    assert (whole.chosen_ended, whole.rejected_ended) == (True, True)
    assert (cut.chosen_ended, cut.rejected_ended) == (True, False)
    rated = {"prompt": "say ", "completion": "aa", "label": True, "ended": False}
    assert [each.ended for each in read(read_rated, rated, {**PAIR, "rejected_ended": False})] == [False, True, False]


def test_what_is_neither_true_nor_false_is_refused(read):
    with pytest.raises(UserError, match=r"rejected_ended is 'no'; it is true, or false"):
        read(read_pairs, {**PAIR, "rejected_ended": "no"})


def test_an_answer_that_was_cut_off_does_not_end_with_the_boundary(read):
    examples = read(read_pairs, PAIR, {**PAIR, "rejected_ended": False})
    recipe = recipe_for("gpt", {"text.tokenizer": "characters"}, "preference")
    tokenizer = train_tokenizer(recipe.text, ["say aaaa\n"])
    chosen, rejected = encode_records(examples, recipe, tokenizer, None).rows
    assert [int(chosen.answers[row][-1]) for row in (0, 1)] == [BOUNDARY, BOUNDARY]
    assert int(rejected.answers[0][-1]) == BOUNDARY
    assert int(rejected.answers[1][-1]) != BOUNDARY
    assert len(rejected.answers[1]) == 4


def test_groups_have_rows_of_similar_length_and_every_row_once(monkeypatch):
    monkeypatch.setattr(log_probs, "MIN_GROUP", 10)
    lengths = torch.tensor([3, 20, 19, 4, 1, 20])
    groups = similar_lengths(lengths)
    assert [lengths[rows].tolist() for rows in groups] == [[20, 20, 19], [4, 3, 1]]
    assert sorted(torch.cat(groups).tolist()) == list(range(6))


def test_sums_do_not_depend_on_the_groups(monkeypatch):
    torch.manual_seed(0)
    model = GPT(DecoderSettings(layers=2, width=16, heads=2, context=32), 11).double()
    lengths = torch.tensor([3, 20, 19, 4, 1, 20])
    tokens = torch.randint(1, 11, (6, 20))
    targets = tokens.roll(-1, 1).masked_fill(torch.arange(20) >= lengths[:, None], IGNORE)
    batch = Batch(tokens, targets, lengths)
    expected = answer_log_probs(model, batch).sum(1)
    monkeypatch.setattr(log_probs, "MIN_GROUP", 10)
    sums, counts = answer_sums(model, batch)
    torch.testing.assert_close(sums, expected)
    assert counts.tolist() == lengths.tolist()
