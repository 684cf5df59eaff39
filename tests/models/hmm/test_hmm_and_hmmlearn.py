"""The HMM against hmmlearn: likelihood, path and rounds of Baum–Welch."""

import numpy as np
import pytest
import torch
from hmmlearn.hmm import CategoricalHMM
from models.hmm.small_hmms import log_p_of, shakespeare, without_boundaries

from chainrule.model import Batch
from chainrule.models.hmm.hmm import HMM


def judge(model: HMM) -> CategoricalHMM:
    """The same model over there; our tokens from 1 on are its symbols from 0 on."""
    it = CategoricalHMM(
        model.settings.states, n_features=model.emission.shape[1] - 1, init_params="", implementation="scaling", tol=-1
    )
    it.startprob_, it.transmat_ = model.initial.numpy().copy(), model.transition.numpy().copy()
    it.emissionprob_ = model.emission[:, 1:].numpy().copy()
    return it


@pytest.mark.parametrize("states", [2, 5, 17])
def test_hmmlearn_agrees_on_likelihood_path_and_rounds(states: int) -> None:
    model = without_boundaries(states, 8)
    generator = torch.Generator().manual_seed(2)
    rows = torch.randint(1, 8, (12, 40), generator=generator)
    lengths = torch.randint(1, 41, (12,), generator=generator)
    flat = np.concatenate([row[:length].numpy() for row, length in zip(rows, lengths)])[:, None] - 1
    theirs = judge(model)
    batch = Batch(torch.cat([torch.zeros(12, 1, dtype=torch.long), rows[:, :-1]], 1), rows, lengths)
    for rounds in (0, 1, 4):
        for _ in range(rounds):
            model.update(model.collect(batch))
        if rounds:
            theirs.n_iter = rounds
            theirs.fit(flat, lengths.numpy())
        wanted, path = theirs.decode(flat, lengths.numpy())
        paths, log_p = model.viterbi(rows, lengths)
        emitted = paths >= 0
        other = paths.masked_scatter(emitted, torch.tensor(path))
        torch.testing.assert_close(log_p_of(model, other, rows), log_p, rtol=1e-12, atol=0)     # paths can tie
        assert float(log_p.sum()) == pytest.approx(wanted, rel=1e-12)
        total = theirs.score(flat, lengths.numpy())
        assert float(model.log_likelihood(rows, lengths).sum()) == pytest.approx(total, rel=1e-12)
        for ours, other in (model.initial, theirs.startprob_), (model.transition, theirs.transmat_):
            np.testing.assert_allclose(ours.numpy(), other, atol=1e-9)
        np.testing.assert_allclose(model.emission[:, 1:].numpy(), theirs.emissionprob_, atol=1e-9)


@pytest.mark.data
def test_hmmlearn_agrees_on_a_real_text() -> None:
    rows = shakespeare(16)
    model = without_boundaries(24, 28)
    theirs = judge(model)
    flat, lengths = rows[:, 1:].reshape(-1, 1).numpy() - 1, [512] * 16
    theirs.n_iter = 4
    theirs.fit(flat, lengths)
    for _ in range(4):
        model.update(model.collect(Batch(rows[:, :-1], rows[:, 1:])))
    np.testing.assert_allclose(model.transition.numpy(), theirs.transmat_, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(model.emission[:, 1:].numpy(), theirs.emissionprob_, rtol=1e-6, atol=1e-12)
    wanted, path = theirs.decode(flat, lengths)
    paths, log_p = model.viterbi(rows)
    other = torch.cat([paths[:, :1], torch.tensor(path).view(16, 512)], 1)
    torch.testing.assert_close(log_p_of(model, other, rows), log_p, rtol=1e-9, atol=0)
    assert float(log_p.sum()) == pytest.approx(wanted, rel=1e-9)
