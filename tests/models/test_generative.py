"""One language model a class: by Bayes' rule worked by hand, with several kinds, and on real reviews."""

import math
import os
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from chainrule.model import Batch, LanguageModel, cross_entropy
from chainrule.models.generative import GenerativeClassifier
from chainrule.models.hmm.hmm import HMM, HMMSettings
from chainrule.models.ngram.ngram import NGram, NGramSettings
from chainrule.models.uniform import Uniform, UniformSettings
from chainrule.recipe import Text
from chainrule.text.tokenizers.tokenizer import train_tokenizer

END, GOOD, BAD, FILM, VOCAB = 0, 1, 2, 3, 4
ROWS = torch.tensor([
    [0, GOOD, FILM, 0, 0],
    [0, GOOD, GOOD, FILM, 0],
    [0, BAD, FILM, 0, 0],
    [0, FILM, 0, 0, 0],
])
LENGTHS = torch.tensor([4, 5, 4, 3])
CLASSES = torch.tensor([1, 1, 0, 1])
TEXTS = Batch(ROWS, CLASSES, LENGTHS)


def naive_bayes(k: float = 1.0, **more) -> GenerativeClassifier:
    settings = NGramSettings(order=1, estimator="add-k", k=k)
    return GenerativeClassifier([NGram(settings, VOCAB) for _ in range(2)], **more)


def learned(model: GenerativeClassifier, batch: Batch = TEXTS, rounds: int = 1) -> GenerativeClassifier:
    model.forget(torch.Generator().manual_seed(1))
    for _ in range(rounds):
        model.update(model.collect(batch))
    return model


def test_the_rule_of_bayes_by_hand() -> None:
    """Of class 0: bad film end, so (c + 1) / 7 each. Of class 1: good 3, film 3, end 3, bad 0, so (c + 1) / 13."""
    answer = learned(naive_bayes())(Batch(torch.tensor([[0, GOOD, BAD, 0]]), torch.tensor([1])))
    first = 1.5 / 5 * (1 / 7) * (2 / 7) * (2 / 7)
    second = 3.5 / 5 * (4 / 13) * (1 / 13) * (4 / 13)
    assert_close(answer, torch.tensor([[math.log(first), math.log(second)]]))


def test_padding_changes_nothing() -> None:
    model, longer = learned(naive_bayes()), ROWS.clone()
    longer[2, 4] = longer[3, 3:] = GOOD
    assert_close(model(Batch(longer, CLASSES, LENGTHS)), model(TEXTS))
    assert_close(learned(naive_bayes(), Batch(longer, CLASSES, LENGTHS))(TEXTS), model(TEXTS))


def kinds() -> list[LanguageModel]:
    return [Uniform(UniformSettings(), VOCAB), NGram(NGramSettings(order=3), VOCAB), HMM(HMMSettings(2), VOCAB)]


@pytest.mark.parametrize("number", range(3))
def test_statistics_add_over_batches_and_ranks(number: int) -> None:
    def two() -> GenerativeClassifier:
        return GenerativeClassifier([kinds()[number] for _ in range(2)])

    model, whole = two(), learned(two())
    model.forget(torch.Generator().manual_seed(1))
    parts = [model.collect(TEXTS.rows(slice(row, row + 1))) for row in range(4)]
    total = parts[0]
    for part in parts[1:]:
        total += parts[0].of(part.tensors())
    model.update(total)
    assert_close(model(TEXTS), whole(TEXTS))
    assert total.texts.tolist() == [1, 3]


def test_kinds_may_be_mixed_and_rounds_make_texts_likelier() -> None:
    model = GenerativeClassifier(kinds()[1:])
    learned(model)
    assert model(TEXTS).isfinite().all()
    model = GenerativeClassifier([HMM(HMMSettings(2), VOCAB) for _ in range(2)])
    nats = [learned(model, rounds=rounds).collect(TEXTS).nats for rounds in range(5)]
    assert all(after < before for before, after in pairwise(nats))


def test_a_class_without_texts_stays_possible() -> None:
    model = GenerativeClassifier([NGram(NGramSettings(order=1), VOCAB) for _ in range(3)])
    answer = learned(model)(TEXTS)
    assert answer.isfinite().all()
    assert math.exp(model.log_prior[2]) == pytest.approx(0.5 / 5.5)


def test_length_normalisation_divides_by_the_length_to_a_power() -> None:
    plain, normalised = learned(naive_bayes()), learned(naive_bayes(length_normalisation=0.5))
    assert_close(normalised(TEXTS), plain(TEXTS) / (LENGTHS - 1)[:, None] ** 0.5)


def test_answers_are_what_a_loss_takes() -> None:
    model = learned(naive_bayes())
    nats, count = cross_entropy(model(TEXTS), TEXTS)
    assert float(nats / count) < math.log(2)
    assert int(count) == 4


@pytest.mark.data
def test_reviews_are_classified() -> None:
    folder = Path(os.environ.get("CHAINRULE_DATA", "")) / "glue" / "SST-2"
    if not folder.is_dir():
        pytest.skip("needs glue/SST-2 in $CHAINRULE_DATA")
    texts = {name: [line.split("\t") for line in (folder / f"{name}.tsv").read_text("utf-8").splitlines()[1:]]
             for name in ("train", "dev")}
    lines = "".join(f"{text}\n" for text, _ in texts["train"])
    tokenizer = train_tokenizer(Text(tokenizer="words", min_count=1), [lines])
    batches = {}
    for name, rows in texts.items():
        tokens = [torch.from_numpy(ids.astype("int64")) for ids in tokenizer.encode_many([text for text, _ in rows])]
        padded = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
        lengths = torch.tensor([len(ids) + 2 for ids in tokens])
        labels = torch.tensor([int(label) for _, label in rows])
        batches[name] = Batch(torch.nn.functional.pad(padded, (1, 1)), labels, lengths)
    model = GenerativeClassifier([NGram(NGramSettings(order=1), len(tokenizer)) for _ in range(2)])
    model.update(model.collect(batches["train"]))
    right = model(batches["dev"]).argmax(1) == batches["dev"].targets
    assert float(right.float().mean()) > 0.81


def test_a_classifier_without_classes_is_made_so_that_a_damaged_run_can_be_refused():
    assert GenerativeClassifier([]).log_prior.shape == (0,)
