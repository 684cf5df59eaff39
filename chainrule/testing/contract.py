"""The contract: all laws of the protocol, and `check_language_model`, which tests them on a model."""

from collections.abc import Callable, Sequence

from torch import Tensor

from chainrule.model import LanguageModel
from chainrule.testing import batch_laws, distribution_laws, learning_laws, state_laws
from chainrule.testing.contract_error import ContractError
from chainrule.testing.wrapped_models import WithSource

CONTEXT = 16    # tokens that a model must hold for the checks

LAWS: list[Callable[[LanguageModel], None]] = [
    state_laws.check_state_is_opaque,
    state_laws.check_rows_come_first,
    state_laws.check_picked_branch_survives,
    state_laws.check_rows_can_be_joined,
    state_laws.check_state_is_plain_tensors,
    state_laws.check_reserve_changes_nothing,
    distribution_laws.check_chunks_do_not_matter,
    distribution_laws.check_chunks_do_not_matter_to_scores,
    distribution_laws.check_scores_agree_with_steps,
    distribution_laws.check_rows_are_independent,
    distribution_laws.check_future_is_not_seen,
    distribution_laws.check_probabilities_sum_to_one,
    distribution_laws.check_receptive_field,
    batch_laws.check_padding_changes_no_loss,
    batch_laws.check_padding_changes_no_score,
    batch_laws.check_seed_repeats_sample,
    batch_laws.check_loss_is_cross_entropy,
    learning_laws.check_padding_is_not_learned,
    learning_laws.check_micro_batches_change_nothing,
    learning_laws.check_learning_lowers_the_loss,
    learning_laws.check_reset_at_boundary,
]
"""All laws, in the order in which they are checked."""


def check_language_model(
    model: LanguageModel,
    source: Tensor | None = None,
    source_lengths: Tensor | None = None,
    laws: Sequence[Callable[[LanguageModel], None]] = LAWS,
) -> None:
    """Checks every law on the model, and leaves it as it was; a ContractError lists all laws that it breaks.

    `source` (1, S) or (1, S, F): for a model that needs one, the source of every text; `laws`: some of them only.
    """
    name = type(model).__name__
    if source is not None:
        model = WithSource(model, source, source_lengths)
    if model.context is not None and model.context < CONTEXT:
        raise ValueError(f"the checks read {CONTEXT} tokens, and this model's context is {model.context}.")
    broken = [line for law in laws if (line := _broken(law, model))]
    if broken:
        title = f"{name} breaks {len(broken)} of {len(laws)} laws:"
        raise ContractError("\n\n".join([title, *broken]))


def _broken(law: Callable[[LanguageModel], None], model: LanguageModel) -> str:
    try:
        law(model)
    except ContractError as error:
        return str(error)
    return ""
