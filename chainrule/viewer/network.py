"""A tiny network as numbers: every vector that it makes of a text, and the rule by which each was made of others.

A node is one vector a token. Its rule says how number i of token t came about:

    lookup   the token's row of a matrix        linear   squash(Σ matrix · input, one a part, + bias)
    each     number by number, of its inputs    norm     by mean and deviation, or by the root of the mean square
    turn     a point in a plane is turned       scores   k_j · q_t / √d, if t may see j
    softmax  e^s / Σ e^s                        mix      Σ_j a_{t,j} v_j            join     one behind another

Shapes: T tokens, N numbers in a vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

TIME, DEPTH = "time", "depth"
RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹"


@dataclass(frozen=True)
class Input:
    """What a node is made of: another's vector of the same token, of the one before, or of all."""

    node: str
    when: str = "now"      # now, before, all


@dataclass
class Network:
    """Nodes in the order in which they are made."""

    order: str                                                    # first through TIME, or first through DEPTH
    nodes: list[dict[str, Any]] = field(default_factory=list)
    band: int = 0                                                 # nodes of one band are drawn side by side

    def add(
        self,
        symbol: str,
        name: str,
        formula: str,
        rule: str,
        inputs: Sequence[Input | str],
        values: Tensor,             # (T, N); -inf where there is nothing
        **facts: Any,               # the numbers of its rule
    ) -> str:
        """The node's name, by which others have it as their input."""
        known = {node["id"] for node in self.nodes}
        id = next(candidate for number in range(len(known) + 1) if (candidate := f"{symbol}.{number}") not in known)
        sources = [Input(given) if isinstance(given, str) else given for given in inputs]
        self.nodes.append({
            "id": id, "symbol": symbol, "name": name, "formula": formula, "rule": rule, "band": self.band,
            "of": [{"id": source.node, "when": source.when} for source in sources],
            "values": plain(values),
            **{key: plain(fact) for key, fact in facts.items() if fact is not None},
        })
        return id

    def below(self) -> None:
        """What comes next is drawn further down."""
        self.band += 1


def raised(number: int) -> str:
    return "".join(RAISED[int(digit)] for digit in str(number))


def plain(fact: Any) -> Any:
    """Tensors as lists of numbers; what is infinite as None."""
    if isinstance(fact, Tensor):
        return plain(fact.tolist())
    if isinstance(fact, (list, tuple)):
        return [plain(part) for part in fact]
    return None if fact in (float("inf"), float("-inf")) else fact
