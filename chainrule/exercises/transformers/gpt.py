"""Exercise gpt: a whole GPT behind chainrule's protocol, pre-norm, with learned positions.

    x = E[w] + P[position]
    in each layer:  x ← x + attention(norm1(x)),   x ← x + W_2 gelu(W_1 norm2(x) + b_1) + b_2
    logits = norm(x) Eᵀ                            norm: LayerNorm, γ ⊙ (x - μ) / σ + β

Attention is causal, with `heads` heads, as in the exercise attention: q = x W_Q, and so on, without biases.
Shapes: B rows, T tokens, V vocabulary, D width, C context.
"""

import torch
from torch import Tensor, nn

from chainrule.model import LanguageModel, State


class Layer(nn.Module):
    """The parameters of one layer. `nn.functional.gelu(x, approximate="tanh")` is the gelu."""

    def __init__(self, width: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.W_Q, self.W_K, self.W_V, self.W_O = (nn.Parameter(torch.randn(width, width) / 4) for _ in range(4))
        self.ff1, self.ff2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)    # W_1, b_1 and W_2, b_2


class GPT(LanguageModel):
    def __init__(self, vocab: int, width: int, heads: int, layers: int, context: int):
        super().__init__()
        self.heads, self.context = heads, context
        self.E = nn.Parameter(torch.randn(vocab, width) / 10)
        self.P = nn.Parameter(torch.randn(context, width) / 10)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> State:
        """The state of `rows` texts of which no token has been read.

        A state is a tensor, or a tuple or dict of tensors, whose first axis is the rows. The simplest state that works
        is the tokens read so far and how many they are: {"tokens": (B, C'), "length": (B,)}, with C' = 0 at first.
        (Rows that have read different numbers of tokens can be joined: then the shorter ones are padded with zeros on
        the right, and only `length` tells. A KV cache, the keys and values of all layers, is the fast alternative.)
        """
        raise NotImplementedError

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, T) tokens, and the state -> (B, T, V) logits of what follows each token, and the next state.

        The first token of a text has position 0; a token that is read later goes on from the row's length. A new state
        is returned: the tensors of the old one must not change, since other rows may have been branched from it.
        """
        raise NotImplementedError
