"""Contract checks for language models: `check_language_model(model)` tests the laws of the protocol on any model.

Each law is a function `check_…(model)` that returns None or raises a ContractError, which states the law and what
differed. They need no training text: tokens are random, and laws about learning train copies of the model. Use a small
model, with a vocabulary of 3 to 64 tokens and a context of at least 16.

Shapes: B rows, T tokens, V vocabulary.
"""

from chainrule.testing.batch_laws import (
    check_loss_is_cross_entropy,
    check_padding_changes_no_loss,
    check_padding_changes_no_score,
    check_seed_repeats_sample,
)
from chainrule.testing.contract import CONTEXT, LAWS, check_language_model
from chainrule.testing.contract_error import Check, ContractError, law
from chainrule.testing.distribution_laws import (
    CUTS,
    PLACES,
    PREFIXES,
    TEXTS,
    check_chunks_do_not_matter,
    check_chunks_do_not_matter_to_scores,
    check_future_is_not_seen,
    check_probabilities_sum_to_one,
    check_receptive_field,
    check_rows_are_independent,
    check_scores_agree_with_steps,
)
from chainrule.testing.example_texts import example_batch, more_tokens, some_tokens
from chainrule.testing.learning import RATES, learn
from chainrule.testing.learning_laws import (
    check_learning_lowers_the_loss,
    check_micro_batches_change_nothing,
    check_padding_is_not_learned,
    check_reset_at_boundary,
)
from chainrule.testing.state_laws import (
    check_picked_branch_survives,
    check_reserve_changes_nothing,
    check_reserved_shapes_stay,
    check_rows_can_be_joined,
    check_rows_come_first,
    check_state_is_opaque,
    check_state_is_plain_tensors,
)
from chainrule.testing.wrapped_models import Disguised, WithSource

__all__ = [
    "CONTEXT", "CUTS", "LAWS", "PLACES", "PREFIXES", "RATES", "TEXTS", "Check", "ContractError", "Disguised",
    "WithSource", "check_chunks_do_not_matter", "check_chunks_do_not_matter_to_scores", "check_future_is_not_seen",
    "check_language_model", "check_learning_lowers_the_loss", "check_loss_is_cross_entropy",
    "check_micro_batches_change_nothing", "check_padding_changes_no_loss", "check_padding_changes_no_score",
    "check_padding_is_not_learned", "check_picked_branch_survives", "check_probabilities_sum_to_one",
    "check_receptive_field", "check_reserve_changes_nothing", "check_reserved_shapes_stay", "check_reset_at_boundary",
    "check_rows_are_independent", "check_rows_can_be_joined", "check_rows_come_first", "check_scores_agree_with_steps",
    "check_seed_repeats_sample", "check_state_is_opaque", "check_state_is_plain_tensors", "example_batch", "law",
    "learn", "more_tokens", "some_tokens",
]
