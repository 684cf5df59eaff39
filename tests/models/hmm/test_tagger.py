"""The tagger against the definition over all sequences of tags, against counts made by hand, and on real text."""

import math
import os
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from chainrule.errors import UserError
from chainrule.model import IGNORE, Batch, cross_entropy
from chainrule.models.hmm.interpolation import hashed
from chainrule.models.hmm.tagger import HMMTagger, HMMTaggerSettings, TagStatistics
from chainrule.models.hmm.word_features import FEATURES, character_class, tagging_batch, word_features, word_shape
from chainrule.run import write_tensors

TAGS = {"DET": 0, "NOUN": 1, "VERB": 2}
TEXT = """
The/DET dog/NOUN barks/VERB
the/DET cat/NOUN saw/VERB the/DET dog/NOUN
dogs/NOUN saw/VERB the/DET saw/NOUN
a/DET cat/NOUN walks/VERB
cats/NOUN bark/VERB
""".strip()
SENTENCES = [[tuple(word.split("/")) for word in line.split()] for line in TEXT.splitlines()]
WORDS = [[word for word, _ in sentence] for sentence in SENTENCES]
NUMBERS = [[TAGS[tag] for _, tag in sentence] for sentence in SENTENCES]
STRANGE = [["the", "dog", "saw"], ["a", "frog", "barks"], ["Cats", "talked"], ["saw"], [], ["the", "the", "Dogs", "x9"]]
KINDS = [HMMTaggerSettings(order, lexical) for order in (1, 2) for lexical in (False, True)]
EDGE = len(TAGS)
USUAL = HMMTaggerSettings()


def made(settings: HMMTaggerSettings = USUAL, words=WORDS, tags=NUMBERS) -> HMMTagger:
    model = HMMTagger(settings, len(TAGS))
    model.update(model.collect(tagging_batch(words, tags)))
    return model


# The definition, written out the slow way


class ByHand:
    """Every table a dictionary, every estimate the formula; the weights are the model's."""

    def __init__(self, model: HMMTagger, words=WORDS, tags=NUMBERS):
        self.model, self.settings = model, model.settings
        self.counts: dict = {}
        for sentence, labels in zip(words, tags):
            before, so_far = "", (EDGE, EDGE)
            for keys, tag in [*zip(word_features([sentence]).tolist(), labels), (None, EDGE)]:
                self.see("transitions", self.histories(*so_far, before), tag)
                if keys is not None:
                    self.see("previous", [tag, (tag, keys[-1])], so_far[1])
                    self.see("lexicon", keys, tag)
                    before, so_far = keys[-1], (so_far[1], tag)

    def histories(self, first, second, word) -> list:
        plain = [(), second, (first, second)][: 1 + self.settings.order]
        return plain + [(second, word), (first, second, word)][: self.settings.order * self.settings.lexical]

    def see(self, table, contexts, answer) -> None:
        kind = (tuple(contexts), answer)
        first_time = self.counts.setdefault((table, kind), 0) == 0
        self.counts[table, kind] += 1
        for level, context in enumerate(contexts):
            if table != "lexicon" or (context != 0 and (first_time or level >= FEATURES - 2)):
                row = self.counts.setdefault((table, level, context), {})
                row[answer] = row.get(answer, 0) + 1

    def p(self, table: str, contexts: list, answers: int) -> list[float]:
        answer = [1 / answers] * answers
        for level, context in enumerate(contexts):
            row, weight = self.counts.get((table, level, context)), float(getattr(self.model, table).weights[level])
            if row and (table != "lexicon" or context != 0):
                total = sum(row.values())
                answer = [(row.get(y, 0) + weight * answer[y]) / (total + weight) for y in range(answers)]
        return answer

    def joint(self, sentence: list[str], path: tuple[int, ...]) -> float:
        """p(words, tags) / p(words), the words taken one by one, as the module's docstring has it."""
        total, before, so_far = 1.0, "", (EDGE, EDGE)
        for keys, tag in [*zip(word_features([sentence]).tolist(), path), (None, EDGE)]:
            total *= self.p("transitions", self.histories(*so_far, before), EDGE + 1)[tag]
            if keys is not None:
                total *= self.p("lexicon", keys, EDGE)[tag] / self.p("transitions", [()], EDGE + 1)[tag]
                if self.settings.lexical:
                    special, plain = (self.p("previous", [tag, (tag, keys[-1])][:n], EDGE + 1) for n in (2, 1))
                    total *= special[so_far[1]] / plain[so_far[1]]
                before, so_far = keys[-1], (so_far[1], tag)
        return total

    def every(self, sentence: list[str]) -> dict[tuple[int, ...], float]:
        return {path: self.joint(sentence, path) for path in product(range(EDGE), repeat=len(sentence))}


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_the_best_path_is_the_best_of_all_sequences_of_tags(settings) -> None:
    model = made(settings)
    truth, found = ByHand(model), model.predict(STRANGE, best_path=True)
    for sentence, path in zip(STRANGE, found):
        joint = truth.every(sentence)
        assert joint[tuple(path)] == pytest.approx(max(joint.values()), rel=1e-5)


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_posteriors_are_sums_over_all_sequences_of_tags(settings) -> None:
    model = made(settings)
    truth, batch = ByHand(model), tagging_batch(STRANGE)
    found = model(batch).exp()
    for row, sentence in enumerate(STRANGE):
        joint = truth.every(sentence)
        for place in range(len(sentence)):
            wanted = [sum(p for path, p in joint.items() if path[place] == tag) for tag in range(EDGE)]
            assert_close(found[row, place].double(), torch.tensor(wanted).double() / sum(wanted), rtol=1e-4, atol=1e-6)


# Counts and weights


def test_counts_are_those_made_by_hand() -> None:
    statistics = HMMTagger(HMMTaggerSettings(order=1, lexical=False), 3).collect(tagging_batch(WORDS, NUMBERS))
    contexts, answers, counts = statistics.transitions.tensors()
    found = {(int(context), int(answer)): int(count) for context, answer, count in zip(contexts[:, 1], answers, counts)}
    wanted: dict[tuple[int, int], int] = {}
    for labels in NUMBERS:
        for one, two in pairwise([EDGE, *labels, EDGE]):
            key = int(hashed(torch.tensor([one]))), two
            wanted[key] = wanted.get(key, 0) + 1
    assert found == wanted
    saw = int(word_features([["saw"]])[0, -1])
    contexts, answers, counts = statistics.lexicon.tensors()
    assert {(int(a), int(n)) for c, a, n in zip(contexts[:, -1], answers, counts) if c == saw} == {(1, 1), (2, 2)}


def test_a_weight_maximises_the_leave_one_out_likelihood() -> None:
    model = made(HMMTaggerSettings(order=1, lexical=False))
    events = [pair for labels in NUMBERS for pair in pairwise([EDGE, *labels, EDGE])]
    root = float(model.transitions.weights[0])

    def nats(weight: float) -> float:
        """-log p of each move by the others alone."""
        total = 0.0
        for left_out, (context, answer) in enumerate(events):
            others = events[:left_out] + events[left_out + 1 :]
            p = (sum(y == answer for _, y in others) + root / 4) / (len(others) + root)
            same = [y for c, y in others if c == context]
            total -= math.log((same.count(answer) + weight * p) / (len(same) + weight))
        return total

    assert float(model.transitions.weights[1]) == min(2.0 ** np.arange(-4, 13), key=nats)


def test_statistics_add() -> None:
    model, whole = HMMTagger(HMMTaggerSettings(), 3), made()
    parts = [model.collect(tagging_batch(WORDS[part], NUMBERS[part])) for part in (slice(2), slice(2, None))]
    model.update(parts[0] + TagStatistics.of(list(parts[1].tensors())))
    assert math.isnan(parts[0].nats)
    for name, table in whole.state_dict().items():
        assert torch.equal(model.state_dict()[name], table), name


def test_words_without_a_tag_are_read_and_not_counted() -> None:
    tags = [row[:] for row in NUMBERS]
    tags[1][2] = IGNORE
    model = HMMTagger(HMMTaggerSettings(), 3)
    every, fewer = (model.collect(tagging_batch(WORDS, labels)) for labels in (NUMBERS, tags))
    for part, lost in ("lexicon", 1), ("transitions", 3), ("previous", 2):
        assert int(getattr(every, part).counts.sum() - getattr(fewer, part).counts.sum()) == lost, part


def test_rows_may_begin_with_a_boundary() -> None:
    batch, model = tagging_batch(WORDS, NUMBERS), HMMTagger(HMMTaggerSettings(), 3)
    pad = torch.nn.functional.pad
    other = Batch(pad(batch.tokens, (1, 0)), pad(batch.targets, (1, 0), value=IGNORE), batch.lengths + 1,
                  source=pad(batch.source, (0, 0, 1, 0)))
    model.update(model.collect(other))
    for name, table in made().state_dict().items():
        assert torch.equal(model.state_dict()[name], table), name
    assert_close(model(other)[:, 1:], model(batch))


# Use


def test_padding_and_other_rows_change_no_tag() -> None:
    model = made()
    together = model.predict(STRANGE)
    assert together == [model.predict([sentence])[0] for sentence in STRANGE]
    assert [len(tags) for tags in together] == [len(sentence) for sentence in STRANGE]
    assert model.predict([]) == []


def test_many_small_batches_are_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made()
    once = model.predict(STRANGE * 3, best_path=True)
    monkeypatch.setattr("chainrule.models.hmm.tagger.WORDS", 4)
    monkeypatch.setattr("chainrule.models.hmm.tagger.STEP", 1)
    assert model.predict(STRANGE * 3, best_path=True) == once


def test_a_long_sentence_does_not_underflow() -> None:
    model, sentence = made(), ["the", "dog", "saw"] * 700
    assert model.predict([sentence]) == model.predict([sentence], best_path=True) == [[0, 1, 2] * 700]


def test_a_sentence_of_tiny_probability_is_tagged() -> None:
    model = HMMTagger(HMMTaggerSettings(), 3)
    statistics = model.collect(tagging_batch(WORDS, NUMBERS))
    for part in statistics.lexicon, statistics.transitions, statistics.previous:
        part.counts.mul_(10**15)
    model.update(statistics)
    contrary = [["barks", "a", "a", "walks", "a", "The", "The"]]
    assert model(tagging_batch(contrary)).isfinite().all()
    assert all(tag in range(3) for tag in model.predict(contrary, best_path=True)[0])


def test_an_unknown_word_is_tagged_by_its_suffix_and_shape() -> None:
    words = [[f"a{ending}"] for ending in ("king", "ring", "wing", "bly", "dly", "mly")]
    model = made(HMMTaggerSettings(lexical=False), words, [[2], [2], [2], [1], [1], [1]])
    assert model.predict([["sing"], ["fly"]], best_path=True) == [[2], [1]]


def test_it_learns_by_one_round_and_answers_with_log_probabilities() -> None:
    model, batch = made(), tagging_batch(WORDS, NUMBERS)
    assert_close(model(batch)[batch.loss_mask].exp().sum(-1), torch.ones(int(batch.loss_mask.sum())))
    nats, count = cross_entropy(model(batch), batch)
    assert float(nats / count) < 0.1
    model.forget(torch.Generator())
    assert float(cross_entropy(model(batch), batch)[0] / count) == pytest.approx(math.log(3), rel=1e-5)


def test_a_tagger_saves_and_loads_as_plain_tensors(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model, other = made(), HMMTagger(HMMTaggerSettings(), 3)
    write_tensors(model.state_dict(), tmp_path / "model.safetensors")
    other.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=True)
    assert torch.equal(other(tagging_batch(STRANGE)), model(tagging_batch(STRANGE)))
    assert torch.equal(other.to("cpu")(tagging_batch(STRANGE)), model(tagging_batch(STRANGE)))


def test_wrong_settings_and_batches_are_refused() -> None:
    with pytest.raises(UserError, match="order=3"):
        HMMTaggerSettings(order=3)
    batch = tagging_batch(WORDS, NUMBERS)
    with pytest.raises(ValueError, match="tagging_batch"):
        made()(Batch(batch.tokens, batch.targets))


# Word features


@pytest.mark.parametrize(("word", "wanted"), [("Al-9", "Xx-d"), ("iPhone", "xXx"), ("1990s", "dx"), ("...", "."),
                                              ("ÉCOLE", "X"), ("a.b.c.d.e", "x.x.x.")])
def test_the_shape_of_a_word(word: str, wanted: str) -> None:
    assert word_shape(word) == wanted


def test_the_character_classes_of_words() -> None:
    words = ["2024", "2nd", "USA", "I", "Dog", "dog", "...", "iPhone"]
    assert [character_class(word) for word in words] == ["d", "d?", "XX", "X", "Xx", "x", "?", "?"]


def test_features_agree_where_words_do() -> None:
    keys = word_features([['"', "Walking", "Talking"], ["talking", "Walking"], ["ab"]])
    (walking_first, talking), (small, walking) = keys[1:3], keys[3:5]
    assert keys.shape == (6, FEATURES)
    assert (walking_first != walking).nonzero()[0].tolist() == list(range(1, FEATURES - 2))   # only its shape differs
    assert (talking == walking).nonzero()[0].tolist() == [0, 1, 2, 3, 4, 5, 6]            # alike to the last 5 letters
    assert (talking == small).nonzero()[0].tolist() == [FEATURES - 2]                         # once made small
    assert (keys[5] == 0).nonzero()[0].tolist() == [4, 5, 6]                              # two letters have 2 endings


def test_hashes_of_contexts_are_distinct_and_never_0() -> None:
    numbers = torch.arange(-1, 60)
    keys = torch.cat([hashed(numbers), hashed(*torch.cartesian_prod(numbers, numbers).unbind(1))])
    assert len(keys.unique()) == len(keys)
    assert (keys != 0).all()


# Real text


def read_conllu(path: Path) -> tuple[list[list[str]], list[list[str]]]:
    words, tags = [[]], [[]]
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = line.split("\t")
        if not line:
            words.append([])
            tags.append([])
        elif fields[0].isdigit():
            words[-1].append(fields[1])
            tags[-1].append(fields[3])
    return words, tags


@pytest.mark.data
def test_english_is_tagged_better_than_by_the_most_frequent_tag() -> None:
    folder = Path(os.environ.get("CHAINRULE_DATA", "")) / "ud-english-ewt"
    if not folder.is_dir():
        pytest.skip("needs ud-english-ewt in $CHAINRULE_DATA")
    words, tags = read_conllu(folder / "en_ewt-ud-train.conllu")
    names = sorted({tag for row in tags for tag in row})
    model = HMMTagger(HMMTaggerSettings(), len(names))
    model.update(model.collect(tagging_batch(words, [[names.index(tag) for tag in row] for row in tags])))
    words, tags = (part[:400] for part in read_conllu(folder / "en_ewt-ud-dev.conllu"))
    predicted = [names[tag] for row in model.predict(words) for tag in row]
    right = [one == two for one, two in zip(predicted, (tag for row in tags for tag in row), strict=True)]
    assert sum(right) / len(right) > 0.935
