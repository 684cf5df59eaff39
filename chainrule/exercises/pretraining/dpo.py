"""Exercise dpo: direct preference optimisation (Rafailov et al. 2023), the loss and its gradient.

    ℓ = -log σ(β [(log π(y_w|x) - log π_ref(y_w|x)) - (log π(y_l|x) - log π_ref(y_l|x))])

x: a prompt; y_w: the answer that people prefer; y_l: the other one; π: the model that is trained; π_ref: the model as
it was. `chainrule train PAIRS --task preference` trains by it. Shapes: B pairs, T tokens, V vocabulary.
"""

import numpy as np


def completion_log_prob(logits: np.ndarray, targets: np.ndarray, completion: np.ndarray) -> np.ndarray:
    """log π(y|x) (B,): Σ_t log softmax(logits_t)[target_t], over the tokens of the answer only.

    logits (B, T, V), targets (B, T): the prompt, the answer and padding in one row; completion (B, T): True for the
    tokens of the answer. A sum, not a mean.
    """
    raise NotImplementedError


def dpo_loss(
    policy_w: np.ndarray, policy_l: np.ndarray, reference_w: np.ndarray, reference_l: np.ndarray, beta: float
) -> float:
    """(B,) log π(y_w|x), log π(y_l|x), log π_ref(y_w|x), log π_ref(y_l|x) -> the mean of ℓ over the pairs.

    log σ(z) must not become -inf where z is -1000. (np.logaddexp(0, z) is log(1 + exp(z)).)
    """
    raise NotImplementedError


def dpo_gradient(
    policy_w: np.ndarray, policy_l: np.ndarray, reference_w: np.ndarray, reference_l: np.ndarray, beta: float
) -> tuple[np.ndarray, np.ndarray]:
    """The gradients (B,) of the mean loss with respect to policy_w and policy_l. A pair that is wrong pulls hardest."""
    raise NotImplementedError


def implicit_reward(policy: np.ndarray, reference: np.ndarray, beta: float) -> np.ndarray:
    """(B,) log π(y|x), log π_ref(y|x) -> (B,): r(x, y) = β (log π(y|x) - log π_ref(y|x))."""
    raise NotImplementedError
