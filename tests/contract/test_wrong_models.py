"""check_language_model passes right models, and names the law that a wrong one breaks."""

import subprocess
import sys

import pytest
import torch
from contract.cases import CASES, VOCAB
from contract.toy import Attentive, Recurrent, ToySettings
from torch import Tensor

from chainrule.model import Batch, State, cross_entropy
from chainrule.testing import LAWS, ContractError, check_language_model


def made(kind: type[Recurrent]) -> Recurrent:
    torch.manual_seed(1)
    return kind(ToySettings(), VOCAB)


class MixesRows(Recurrent):
    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        logits, state = super().step(tokens, state)
        return logits + logits.mean(0), state


class MixesStates(Recurrent):
    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return super().step(tokens, state + state.mean(0))


class SeesTheFuture(Recurrent):
    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        logits, state = super().step(tokens, state)
        return logits + self.embed(tokens)[..., :VOCAB].mean(1, keepdim=True), state


class ForgetsBetweenChunks(Recurrent):
    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        logits, state = super().step(tokens, state)
        return logits, torch.zeros_like(state)


class IsNotNormalised(Recurrent):
    def score(self, tokens: Tensor, targets: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        scores, state = super().score(tokens, targets, state)
        return scores + 0.01, state


class PutsRowsLast(Recurrent):
    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        return super().start(rows).T

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        logits, state = super().step(tokens, state.T)
        return logits, state.T


class KeepsTheStateToItself(Recurrent):
    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        self.own = super().start(rows)
        return self.own[:, :0]

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        logits, self.own = super().step(tokens, self.own)
        return logits, state


class ReadsThePadding(Recurrent):
    def forward(self, batch: Batch) -> Tensor:
        return super().forward(batch) + self.embed(batch.tokens)[..., :VOCAB].mean(1, keepdim=True)


class AveragesTheLoss(Recurrent):
    def loss(self, batch: Batch, state: State = None) -> tuple[Tensor, Tensor, State]:
        total, count, state = super().loss(batch, state)
        return total / count, count, state


class ClaimsAShortReceptiveField(Recurrent):
    receptive_field = 2


class ClaimsToReset(Recurrent):
    resets_at_boundary = True


class LearnsUphill(Recurrent):
    def forward(self, batch: Batch) -> Tensor:
        logits = super().forward(batch)
        return 2 * logits.detach() - logits


WRONG = {
    MixesRows: "check_rows_are_independent",
    MixesStates: "check_rows_can_be_joined",
    SeesTheFuture: "check_future_is_not_seen",
    ForgetsBetweenChunks: "check_chunks_do_not_matter",
    IsNotNormalised: "check_probabilities_sum_to_one",
    PutsRowsLast: "check_rows_come_first",
    KeepsTheStateToItself: "check_picked_branch_survives",
    ReadsThePadding: "check_padding_changes_no_loss",
    AveragesTheLoss: "check_loss_is_cross_entropy",
    ClaimsAShortReceptiveField: "check_receptive_field",
    ClaimsToReset: "check_reset_at_boundary",
    LearnsUphill: "check_learning_lowers_the_loss",
}


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_a_wrong_model_breaks_a_law_that_the_error_names(kind: type[Recurrent]) -> None:
    with pytest.raises(ContractError) as caught:
        check_language_model(made(kind))
    broken = [line.partition(":")[0] for line in str(caught.value).splitlines() if line.startswith("check_")]
    assert WRONG[kind] in broken
    assert str(caught.value).startswith(f"{kind.__name__} breaks {len(broken)} of {len(LAWS)} laws:")


def test_a_right_model_passes_and_stays_as_it_was() -> None:
    model = made(Recurrent).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    check_language_model(model)
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    check_language_model(Attentive(ToySettings(), VOCAB))


def test_a_model_with_a_source_passes() -> None:
    case = next(case for case in CASES if case.kind == "seq2seq")
    check_language_model(case.train().model, case.source)


def test_a_model_that_fails_is_reported_with_its_exception() -> None:
    class Fails(Recurrent):
        def score(self, tokens: Tensor, targets: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            raise IndexError("no such token")

    with pytest.raises(ContractError, match="raised IndexError: no such token"):
        check_language_model(made(Fails))


def test_a_context_too_short_for_the_checks_is_refused() -> None:
    with pytest.raises(ValueError, match="the checks read 16 tokens, and this model's context is 8"):
        check_language_model(Attentive(ToySettings(context=8), VOCAB))


def test_the_checks_need_no_pytest() -> None:
    code = "import sys, chainrule.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_loss_of_the_uphill_model_is_right() -> None:
    """Its gradient alone is wrong, so that only laws about learning can notice."""
    right, wrong, batch = made(Recurrent), made(LearnsUphill), Batch(torch.ones(2, 3).long(), torch.ones(2, 3).long())
    assert torch.equal(cross_entropy(right(batch), batch)[0], cross_entropy(wrong(batch), batch)[0])
