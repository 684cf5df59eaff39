"""The tagger and the classifier that count learn and answer on a GPU as they do on the CPU."""

import pytest
import torch
from torch.testing import assert_close

from chainrule.model import Batch
from chainrule.models.generative import GenerativeClassifier
from chainrule.models.hmm.tagger import HMMTagger, HMMTaggerSettings
from chainrule.models.hmm.word_features import tagging_batch
from chainrule.models.ngram.ngram import NGram, NGramSettings

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]

WORDS = [["The", "dog", "barks"], ["the", "cat", "saw", "the", "dog"], ["dogs", "saw", "the", "saw"], ["cats", "bark"]]
TAGS = [[0, 1, 2], [0, 1, 2, 0, 1], [1, 2, 0, 1], [1, 2]]
STRANGE = [["the", "frog", "saw"], ["Cats", "talked"], ["x9"]]


def tagger(device: str) -> HMMTagger:
    model = HMMTagger(HMMTaggerSettings(), 3).to(device)
    model.update(model.collect(tagging_batch(WORDS, TAGS).to(device)))
    return model


def test_tags_on_a_gpu_are_those_of_the_cpu():
    here, there, batch = tagger("cpu"), tagger("cuda"), tagging_batch(STRANGE)
    found = there(batch.to("cuda"))
    assert found.is_cuda
    assert_close(found.cpu(), here(batch), rtol=1e-3, atol=1e-3)
    assert there.predict(STRANGE, best_path=True) == here.predict(STRANGE, best_path=True)


def test_classes_on_a_gpu_are_those_of_the_cpu():
    batch = Batch(torch.tensor([[0, 1, 3, 0], [0, 2, 3, 0], [0, 1, 1, 3]]), torch.tensor([1, 0, 1]))
    answers = {}
    for device in "cpu", "cuda":
        model = GenerativeClassifier([NGram(NGramSettings(order=2), 4) for _ in range(2)]).to(device)
        model.update(model.collect(batch.to(device)))
        answers[device] = model(batch.to(device)).cpu()
    assert_close(answers["cuda"], answers["cpu"], rtol=1e-4, atol=1e-4)
