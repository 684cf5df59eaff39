"""IPO: identity preference optimisation (Azar et al. 2023, arXiv:2310.12036).

    loss = (Δ - 1 / 2β)²,   Δ = (1/n⁺) log π(y⁺)/π₀(y⁺) - (1/n⁻) log π(y⁻)/π₀(y⁻)

The margin is pulled to 1 / 2β and not beyond, so that sure preferences do not drive the policy away from the reference.
Log-ratios are means over the n tokens of an answer, as the authors' own results and TRL have them.
"""

from torch import Tensor


def ipo(
    chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, beta: float,
    chosen_tokens: Tensor, rejected_tokens: Tensor,
) -> Tensor:
    """(B,) of log p of the answers and the number of their tokens, each (B,)."""
    first = (chosen - ref_chosen) / chosen_tokens.clamp(min=1)
    second = (rejected - ref_rejected) / rejected_tokens.clamp(min=1)
    return (first - second - 1 / (2 * beta)).square()
