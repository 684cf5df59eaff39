"""Texts are written so many sources at a time, and fewer where memory runs out; which changes none of them.

Answers are scored by parts, which all read as often and are together the whole.
"""

import numpy as np
import pytest
import torch

from chainrule.errors import UserError
from chainrule.inference.beam import Beam, beam_search
from chainrule.inference.evaluate import losses_by_batch
from chainrule.models.seq2seq import Seq2Seq, Seq2SeqSettings
from chainrule.tasks import build_for, example_task, recipe_for, translate
from chainrule.tasks.batching import Ragged
from chainrule.tasks.example_task import evaluation_buckets
from chainrule.tasks.translate import Sequences, write_texts

VOCAB, TEXTS = 12, 23


class Letters:
    def decode(self, tokens):
        return "".join(chr(96 + token) for token in tokens)


@pytest.fixture
def made():
    torch.manual_seed(1)
    model = Seq2Seq(Seq2SeqSettings(hidden=8, layers=1), vocab=VOCAB).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6)                                               # so that sources matter
    chance = np.random.default_rng(1)
    ends = np.cumsum(chance.integers(1, 9, TEXTS))
    sources = Ragged(chance.integers(1, VOCAB, ends[-1]), ends)
    return model, Sequences(sources, Ragged(np.ones(TEXTS, np.int64), np.arange(1, TEXTS + 1)))


def scarce(most, error):
    """Beam search where there is memory for so many sources only."""
    asked = []

    def limited(model, beam, *, source, lengths):
        asked.append(len(source))
        if len(source) > most:
            raise error
        return beam_search(model, beam, source=source, lengths=lengths)

    return limited, asked


@pytest.mark.parametrize("error", [
    torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("[enforce fail] can't allocate memory"), MemoryError(),
], ids=["cuda", "cpu", "python"])
def test_fewer_at_a_time_write_the_same(made, monkeypatch, capsys, error):
    wanted = write_texts(*made, Letters(), Beam(2, limit=6))
    limited, asked = scarce(3, error)
    monkeypatch.setattr("chainrule.inference.beam.beam_search", limited)
    monkeypatch.setattr(translate, "ROWS", 8)
    found_texts = write_texts(*made, Letters(), Beam(2, limit=6))
    assert [texts[0][0] for texts in found_texts] == [texts[0][0] for texts in wanted]
    assert len({texts[0][0] for texts in wanted}) > 3                       # not one answer for all
    assert asked[:4] == [8, 4, 2, 2]                                        # halved until it fits,
    assert max(asked[3:]) == 2                                              # and remembered
    assert capsys.readouterr().err.count("from here on 2 texts at a time") == 1


@pytest.mark.parametrize(("most", "error"), [(0, torch.OutOfMemoryError("no")), (3, RuntimeError("a bug"))])
def test_what_fewer_do_not_mend_is_not_hidden(made, monkeypatch, most, error):
    monkeypatch.setattr("chainrule.inference.beam.beam_search", scarce(most, error)[0])
    with pytest.raises(type(error), match=str(error)):
        write_texts(*made, Letters(), Beam(2, limit=6))


def test_a_wide_beam_takes_fewer_sources_at_a_time_and_texts_come_with_their_scores(made, monkeypatch):
    limited, asked = scarce(TEXTS, None)
    monkeypatch.setattr("chainrule.inference.beam.beam_search", limited)
    monkeypatch.setattr(translate, "OUTPUTS", 12)
    found_texts = write_texts(*made, Letters(), Beam(4, alpha=2.0, best=2, limit=6))
    assert max(asked) == 3                                                  # of 4 texts each
    model, examples = made
    batch = examples.batch(np.array([5]), [size[5] for size in examples.sizes])
    wanted = beam_search(model, Beam(4, alpha=2.0, best=2, limit=6), source=batch.source, lengths=batch.source_lengths)
    assert [score for _, score in found_texts[5]] == pytest.approx([text.score for text in wanted[0].texts], abs=1e-4)


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 50])
def test_every_part_reads_as_often_and_together_they_are_the_whole(made, monkeypatch, parts):
    model, examples = made
    monkeypatch.setitem(example_task.TOKENS, "cpu", 40)
    order = evaluation_buckets(model, examples)
    assert order.steps == 5
    asked, nats = [], model.loss
    monkeypatch.setattr(model, "loss", lambda batch: asked.append(batch) or nats(batch))
    whole = np.sum(list(losses_by_batch(model, order)), 0)
    asked.clear()
    found = []
    for part in range(parts):
        found += losses_by_batch(model, order, part, parts)
        assert len(asked) == (part + 1) * -(-order.steps // parts)
    np.testing.assert_allclose(np.sum(found, 0), whole, rtol=1e-6)
    assert whole[1] == 2 * TEXTS                                            # a token each, and its end


@pytest.mark.parametrize("kind", ["seq2seq", "transformer"])
def test_a_source_vocabulary_smaller_than_the_tokenizer_is_refused(kind):
    recipe = recipe_for(kind, {"model.source_vocab": 9}, "translate")
    with pytest.raises(UserError, match=r"model.source_vocab=9: .* there are 10\. Leave it out, or give 10 or more"):
        build_for(recipe, 10)
    assert build_for(recipe, 9) is not None
