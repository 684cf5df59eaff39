"""The prefix cache: states of texts that were read before, so that a shared prefix is read once.

A state is kept at the end of each prefill call, under the tokens read so far and the widths of the calls that read
them. So a request takes from the cache exactly the bits that it would have computed. The least recently used states are
dropped when their bytes exceed the limit.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from chainrule.model import State, state_bytes

Key: TypeAlias = tuple[tuple[int, ...], bytes]    # the widths of the calls, and the tokens
MIN_WIDTH = 16                                    # of a call at whose end a state is kept: shorter ones cost little


class PrefixCache:
    def __init__(self, limit: int):
        self.limit, self.bytes = limit, 0         # bytes
        self._states: OrderedDict[Key, State] = OrderedDict()

    def find(self, keys: Sequence[Key]) -> tuple[int, State]:
        """How many calls the longest known one of these prefixes saves, and its state; 0 and None: none is known."""
        for calls in range(len(keys), 0, -1):
            if keys[calls - 1] in self._states:
                self._states.move_to_end(keys[calls - 1])
                return calls, self._states[keys[calls - 1]]
        return 0, None

    def __contains__(self, key: Key) -> bool:
        return key in self._states

    def add(self, key: Key, state: State) -> None:
        size = state_bytes(state)
        if key in self._states or size > self.limit:
            return
        self._states[key] = state
        self.bytes += size
        while self.bytes > self.limit:
            _, dropped = self._states.popitem(last=False)
            self.bytes -= state_bytes(dropped)


def prefix_keys(tokens: NDArray[np.int64], plan: Sequence[int]) -> list[Key]:
    """The key after each prefill call of a plan, as far as states are kept."""
    keys, end = [], 0
    for calls, width in enumerate(plan, 1):
        if width < MIN_WIDTH:
            break
        end += width
        keys.append((tuple(plan[:calls]), tokens[:end].tobytes()))
    return keys
