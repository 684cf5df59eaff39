"""Bradley–Terry (1952): the loss of a reward model (Ouyang et al. 2022, arXiv:2203.02155).

    p(y⁺ preferred to y⁻) = σ(r(y⁺) - r(y⁻));   loss = -log σ(r⁺ - r⁻ - margin) + c (r⁺ + r⁻)²

Only differences of rewards matter to the first term; the second keeps their mean near 0 (Eisenstein et al. 2023,
arXiv:2312.09244).
"""

from torch import Tensor
from torch.nn.functional import logsigmoid


def bradley_terry(chosen: Tensor, rejected: Tensor, margin: Tensor | None = None, center: float = 0.0) -> Tensor:
    """(B,) of the rewards of both answers, each (B,)."""
    difference = chosen - rejected if margin is None else chosen - rejected - margin
    loss = -logsigmoid(difference)
    return loss + center * (chosen + rejected).square() if center else loss
