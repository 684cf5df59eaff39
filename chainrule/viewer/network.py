"""A tiny network as a graph of numbers: every vector that it computes, and the rule that computes it from others.

A node has one vector for each token. Its rule says how number i of token t is computed:

    lookup   the token's row of a matrix        linear   squash(Σ matrix · input + bias), one matrix for each input
    each     elementwise, from its inputs       norm     by mean and deviation, or by the root mean square
    rotate   RoPE: pairs of numbers rotate      scores   k_j · q_t / √d, where the mask allows j
    softmax  e^s / Σ e^s                        mix      Σ_j a_{t,j} v_j            join     concatenation

Shapes: T tokens, N numbers in a vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

TIME, DEPTH = "time", "depth"
SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"


@dataclass(frozen=True)
class Input:
    """An input of a node: another node's vector of the same token, of the one before, or of all."""

    node: str
    when: str = "now"      # now, before, all


@dataclass
class Network:
    """Nodes in the order in which they are computed."""

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
        values: Tensor,             # (T, N); -inf where masked
        **facts: Any,               # the numbers of its rule
    ) -> str:
        """The node's id, by which it is the input of others."""
        known = {node["id"] for node in self.nodes}
        id = next(candidate for number in range(len(known) + 1) if (candidate := f"{symbol}.{number}") not in known)
        sources = [Input(given) if isinstance(given, str) else given for given in inputs]
        self.nodes.append({
            "id": id, "symbol": symbol, "name": name, "formula": formula, "rule": rule, "band": self.band,
            "of": [{"id": source.node, "when": source.when} for source in sources],
            "values": as_lists(values),
            **{key: as_lists(fact) for key, fact in facts.items() if fact is not None},
        })
        return id

    def below(self) -> None:
        """The next nodes are drawn further down."""
        self.band += 1


def superscript(number: int) -> str:
    return "".join(SUPERSCRIPTS[int(digit)] for digit in str(number))


def as_lists(fact: Any) -> Any:
    """Tensors as lists of numbers; infinity as None."""
    if isinstance(fact, Tensor):
        return as_lists(fact.tolist())
    if isinstance(fact, (list, tuple)):
        return [as_lists(part) for part in fact]
    return None if fact in (float("inf"), float("-inf")) else fact
