"""Laws about batches and samples: padding, the loss as cross-entropy, and seeds."""

import numpy as np
import torch

from chainrule.inference.forward import vocabulary_size
from chainrule.inference.generate import sample
from chainrule.inference.sampling import Sampling
from chainrule.inference.score import score_texts
from chainrule.model import Batch, LanguageModel, cross_entropy
from chainrule.testing.comparisons import assert_same
from chainrule.testing.contract_error import law
from chainrule.testing.example_texts import batch_for, some_tokens, with_other_padding


@law
def check_padding_changes_no_loss(model: LanguageModel) -> None:
    """The loss does not depend on the tokens in the padding, nor on how much padding there is."""
    text = batch_for(model)
    other = with_other_padding(model, text)
    assert not torch.equal(other.tokens, text.tokens)
    assert_same(cross_entropy(model(other), other)[0], cross_entropy(model(text), text)[0], "loss with other padding")
    assert text.lengths is not None
    for row in (1, 2):
        padded = text.rows(slice(row, row + 1))
        size = int(text.lengths[row])
        alone = Batch(padded.tokens[:, :size], padded.targets[:, :size])
        expected = cross_entropy(model(alone), alone)[0]
        assert_same(cross_entropy(model(padded), padded)[0], expected, "loss without padding")


@law
def check_padding_changes_no_score(model: LanguageModel) -> None:
    """Texts of different lengths scored together get the scores that each gets alone."""
    top = vocabulary_size(model) - 1
    every = [np.minimum(np.array(text, int), top) for text in ([1, 2, 3, 4, 1, 2], [], [4], [3, 3, 1], [2, 1])]
    for text, scores in zip(every, score_texts(model, every)):
        assert len(scores) == len(text) + 1, f"{len(scores)} scores of {len(text)} tokens and the end"
        np.testing.assert_allclose(scores, score_texts(model, [text])[0], atol=1e-5)


@law
def check_seed_repeats_sample(model: LanguageModel) -> None:
    """A seed repeats a sample, and a row's sample does not depend on the number of rows."""
    top = vocabulary_size(model) - 1
    prompts = [np.array([1, 2]), np.array([], int), np.minimum([3, 3, 3], top)]
    first, again, other = (
        torch.stack(list(sample(model, prompts, 24, Sampling(seed=seed), ends=False))) for seed in (5, 5, 6)
    )
    assert torch.equal(first, again), "the same seed gives another sample"
    assert not torch.equal(first, other), "another seed gives the same sample"
    alone = torch.stack(list(sample(model, prompts[:1], 24, Sampling(seed=5), ends=False)))
    assert torch.equal(alone[:, 0], first[:, 0]), "a row alone gives another sample"


@law
def check_loss_is_cross_entropy(model: LanguageModel) -> None:
    """`loss` is the cross-entropy of the logits of `forward`, and continues from a state."""
    text, row = batch_for(model), some_tokens(model, 1, 13)
    total, count, _ = model.loss(text)
    expected = cross_entropy(model(text), text)
    assert_same(total, expected[0], "summed loss")
    assert int(count) == int(expected[1]), f"{int(count)} targets instead of {int(expected[1])}"
    whole, _, _ = model.loss(Batch(row[:, :12], row[:, 1:13]))
    first, _, state = model.loss(Batch(row[:, :6], row[:, 1:7]), model.start(1))
    second, _, _ = model.loss(Batch(row[:, 6:12], row[:, 7:13]), state)
    assert_same(first + second, whole, "loss in two chunks")
