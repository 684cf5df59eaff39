"""The laws of the protocol (chainrule/testing/) for every kind. A new kind joins by one line in cases.py."""

from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.cases import CASES, VOCAB, Case
from contract.toy import Attentive
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from chainrule import run, testing
from chainrule.model import LanguageModel
from chainrule.recipe import Text
from chainrule.testing import CUTS, LAWS, PLACES, PREFIXES, WithSource, more_tokens, some_tokens
from chainrule.text.tokenizers.tokenizer import train_tokenizer

UNTRAINED = {str(case): case.make() for case in CASES}    # which laws apply depends on the model that is made
TRAINED: dict[str, LanguageModel] = {}


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def made(case: Case) -> LanguageModel:
    """The case's model, trained once for all laws; a law must leave it as it was."""
    if str(case) not in TRAINED:
        TRAINED[str(case)] = case.train()
    return TRAINED[str(case)]


@pytest.fixture(autouse=True)
def _without_gradient() -> Any:
    with torch.no_grad():
        yield


def test_only_the_model_looks_inside_its_state(made: LanguageModel) -> None:
    testing.check_state_is_opaque(made)


def test_rows_come_first_in_every_tensor_of_a_state(made: LanguageModel) -> None:
    testing.check_rows_come_first(made)


def test_a_picked_branch_outlives_the_state_it_came_from(made: LanguageModel) -> None:
    testing.check_picked_branch_survives(made)


@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_chunks_do_not_matter(made: LanguageModel, cuts: tuple[int, ...]) -> None:
    testing.check_chunks_do_not_matter(made, cuts)


def test_reserved_memory_changes_no_prediction_and_reading_into_it_no_shape(made: LanguageModel) -> None:
    testing.check_reserve_changes_nothing(made)
    if not isinstance(made, Attentive):    # a toy whose state grows with every token
        testing.check_reserved_shapes_stay(made)


def test_chunks_do_not_matter_to_scores(made: LanguageModel) -> None:
    testing.check_chunks_do_not_matter_to_scores(made)


@pytest.mark.parametrize("case", [case for case in CASES if UNTRAINED[str(case)].receptive_field is not None], ids=str)
def test_what_is_further_back_than_the_receptive_field_does_not_matter(made: LanguageModel) -> None:
    testing.check_receptive_field(made)


@pytest.mark.parametrize("case", [case for case in CASES if UNTRAINED[str(case)].resets_at_boundary], ids=str)
def test_what_resets_at_a_boundary_predicts_and_learns_so(case: Case, made: LanguageModel) -> None:
    testing.check_reset_at_boundary(made)
    testing.check_reset_at_boundary(case.make())


def test_scores_are_what_steps_say(made: LanguageModel) -> None:
    testing.check_scores_agree_with_steps(made)


def test_rows_never_meet(made: LanguageModel) -> None:
    testing.check_rows_are_independent(made)


def test_rows_of_different_lengths_go_on_together_as_they_would_alone(made: LanguageModel) -> None:
    testing.check_rows_can_be_joined(made)


def test_a_state_is_plain_tensors(made: LanguageModel) -> None:
    testing.check_state_is_plain_tensors(made)


@pytest.mark.parametrize("now", PLACES)
def test_the_future_is_not_seen(made: LanguageModel, now: int) -> None:
    testing.check_future_is_not_seen(made, now)


@pytest.mark.parametrize("begin", PREFIXES, ids=str)
def test_all_texts_of_a_length_together_have_probability_1(made: LanguageModel, begin: tuple[int, ...]) -> None:
    testing.check_probabilities_sum_to_one(made, begin)


def test_padding_changes_no_loss(made: LanguageModel) -> None:
    testing.check_padding_changes_no_loss(made)


def test_padding_changes_nothing_that_is_learned(case: Case) -> None:
    testing.check_padding_is_not_learned(case.make())


def test_padding_changes_no_score(made: LanguageModel) -> None:
    testing.check_padding_changes_no_score(made)


def test_a_seed_repeats_a_sample(made: LanguageModel) -> None:
    testing.check_seed_repeats_sample(made)


def test_learning_lowers_the_loss_and_counting_never_raises_it(case: Case) -> None:
    testing.check_learning_lowers_the_loss(case.make(), gain=0.01)


def test_the_training_loss_is_the_cross_entropy_and_continues_from_a_state(made: LanguageModel) -> None:
    testing.check_loss_is_cross_entropy(made)


def test_cutting_a_step_into_micro_batches_changes_nothing(case: Case) -> None:
    testing.check_micro_batches_change_nothing(case.make())


def test_every_check_belongs_to_the_contract() -> None:
    checks = {name for name in testing.__all__ if name.startswith("check_")}
    assert checks - {law.__name__ for law in LAWS} == {"check_language_model", "check_reserved_shapes_stay"}


def test_every_law_is_tested_here() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert len(LAWS) >= 18
    assert [law.__name__ for law in LAWS if f"testing.{law.__name__}(" not in source] == []
    assert all(law.__doc__ and "model" in signature(law).parameters for law in LAWS)


def test_a_saved_model_answers_the_same(case: Case, made: LanguageModel, tmp_path: Path) -> None:
    if case.network is None:
        tokenizer = train_tokenizer(Text(tokenizer="words", min_count=1), ["a b c"])
        assert len(tokenizer) == VOCAB
        run.save(tmp_path / "run", made.model if isinstance(made, WithSource) else made, tokenizer, case.recipe())
        loaded = case.with_source(run.load(tmp_path / "run").model)
    else:
        save_file(made.state_dict(), tmp_path / "model.safetensors")
        loaded = case.make()
        loaded.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=True)
    tokens = some_tokens(made, 3, 12)
    logits, wanted = (model.step(tokens, model.start(3))[0] for model in (loaded.eval(), made))
    assert torch.equal(logits, wanted)
    scored, wanted = (model.score(tokens[:, :-1], tokens[:, 1:], model.start(3))[0] for model in (loaded, made))
    assert torch.equal(scored, wanted)


def test_half_the_bits_make_about_the_same_answers(case: Case, made: LanguageModel) -> None:
    """A network that generates on a GPU does so in bfloat16."""
    if made.learns_by == "counting":
        pytest.skip("tables are not rounded")
    brief, tokens = case.make(), some_tokens(made, 3, 12)
    brief.load_state_dict(made.state_dict())
    brief.bfloat16().eval()
    logits, state = brief.step(tokens, brief.start(3))
    more, _ = brief.step(more_tokens(made, 3, 1), state)
    wanted, state = made.step(tokens, made.start(3))
    assert more.dtype == logits.dtype == torch.bfloat16
    if "experts" in case.settings:    # rounding lets a router choose another expert where two are about as good
        assert float((logits.float() - wanted).abs().mean()) < 0.1
        return
    assert_close(logits.float(), wanted, atol=0.2, rtol=0.1)
    assert_close(more.float(), made.step(more_tokens(made, 3, 1), state)[0], atol=0.2, rtol=0.1)
