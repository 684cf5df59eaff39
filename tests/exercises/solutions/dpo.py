import numpy as np


def completion_log_prob(logits: np.ndarray, targets: np.ndarray, completion: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    chosen = np.take_along_axis(log_p, targets[..., None], -1)[..., 0]
    return np.where(completion, chosen, 0).sum(1)


def margin(policy_w, policy_l, reference_w, reference_l, beta):
    return beta * ((policy_w - reference_w) - (policy_l - reference_l))


def dpo_loss(
    policy_w: np.ndarray, policy_l: np.ndarray, reference_w: np.ndarray, reference_l: np.ndarray, beta: float
) -> float:
    z = margin(policy_w, policy_l, reference_w, reference_l, beta)
    return float(np.logaddexp(0, -z).mean())


def dpo_gradient(
    policy_w: np.ndarray, policy_l: np.ndarray, reference_w: np.ndarray, reference_l: np.ndarray, beta: float
) -> tuple[np.ndarray, np.ndarray]:
    z = margin(policy_w, policy_l, reference_w, reference_l, beta)
    pull = beta * np.exp(-np.logaddexp(0, z)) / len(z)
    return -pull, pull


def implicit_reward(policy: np.ndarray, reference: np.ndarray, beta: float) -> np.ndarray:
    return beta * (policy - reference)
