"""What can be chosen about a Transformer, and one dial, `size`, for its measures."""

from dataclasses import dataclass
from typing import Literal

from chainrule.errors import UserError

SIZES = {    # layers, width, heads, context
    "tiny": (4, 128, 4, 128),
    "small": (6, 384, 6, 256),
    "medium": (12, 768, 6, 1024),
    "large": (24, 1024, 8, 1024),
    "xl": (24, 2048, 16, 2048),
}
WAVELENGTH = 10_000.0
ROUND = 64           # a hidden width that was not asked for is a multiple of this


@dataclass(frozen=True)
class TransformerSettings:
    size: Literal["tiny", "small", "medium", "large", "xl"] | None = None  # sets what is 0 below; none: small
    layers: int = 0             # blocks; 0: as the size says
    width: int = 0              # numbers in the vector of a token; 0: as the size says
    heads: int = 0              # attention heads; 0: as the size says
    context: int = 0            # most tokens that are seen at once; 0: as the size says
    head_size: int = 0          # numbers in a head; 0: width / heads
    kv_heads: int = 0           # heads of keys and values, each shared by heads / kv_heads heads; 0: one for each
    window: int | None = None   # a token sees this many, itself included; none: all before it
    hidden: int = 0             # numbers inside the feed-forward part; 0: four times the width, of swiglu 8/3 times
    positions: Literal["rotary", "learned", "sinusoidal", "relative", "none"] = "rotary"  # how a place is told
    rope_theta: float = WAVELENGTH  # of the slowest rotary turn, in tokens and over 2π
    norm: Literal["rms", "layer"] = "rms"  # by the root of the mean square, or by mean and deviation
    norm_first: bool = True     # norm what goes into a part; false: norm the sum behind it, as in 2017
    norm_embedding: bool = True  # norm the vectors of tokens before the first block
    qk_norm: bool = True        # norm queries and keys before they meet
    norm_scale: bool = False         # norms have learned gains
    epsilon: float = 1e-6       # added to the variance, so that a norm of nothing is nothing
    activation: Literal["relu2", "relu", "gelu", "gelu-tanh", "swiglu"] = "relu2"  # inside the feed-forward part
    biases: bool = False        # linear maps and layer norms add a learned vector
    dropout: float = 0.0        # share dropped of embeddings, patterns, and what each part adds
    zero_init: bool = True           # what each part adds is nothing at first
    init: float = 0.0           # deviation of the first weights; 0: 1/√ of how many a number is summed from

    def __post_init__(self) -> None:
        self._check_ranges()
        self._turn_the_dial()
        self._check_heads()

    def _check_ranges(self) -> None:
        for name in ("layers", "width", "heads", "context", "head_size", "kv_heads", "hidden", "init"):
            if getattr(self, name) < 0:
                raise UserError(f"model.{name}={getattr(self, name)}: it is more than 0, or 0 to have it chosen.")
        if self.window is not None and self.window < 1:
            raise UserError(f"model.window={self.window}: a token sees at least itself, which is 1.")
        if not 0 <= self.dropout < 1:
            raise UserError(f"model.dropout={self.dropout:g}: it is a share, from 0 to less than 1.")
        if self.epsilon <= 0 or self.rope_theta <= 0:
            raise UserError("model.epsilon and model.rope_theta are more than 0.")
        if self.rope_theta != WAVELENGTH and self.positions != "rotary":
            raise UserError(f"model.rope_theta={self.rope_theta:g} is of rotary positions; these are {self.positions}.")

    def _turn_the_dial(self) -> None:
        """What was left open is filled in, so that a recipe says what was built whatever the sizes become."""
        names = ("layers", "width", "heads", "context")
        if self.size is not None and all(getattr(self, name) for name in names):
            raise UserError(f"model.size={self.size} changes nothing where {', '.join(names)} are given; leave it out.")
        for name, value in zip(names, SIZES[self.size or "small"]):
            self._fill(name, value)
        object.__setattr__(self, "size", None)

    def _check_heads(self) -> None:
        if not self.head_size and self.width % self.heads:
            fit = [heads for heads in range(1, self.width + 1) if self.width % heads == 0]
            below = max(heads for heads in fit if heads < self.heads)
            near = " and ".join(map(str, [below, *(heads for heads in fit if heads > self.heads)][:2]))
            raise UserError(f"model.heads={self.heads} does not divide model.width={self.width}, as {near} would.")
        self._fill("head_size", self.width // self.heads)
        self._fill("kv_heads", self.heads)
        gated = -(-8 * self.width // 3 // ROUND) * ROUND
        self._fill("hidden", gated if self.activation == "swiglu" else 4 * self.width)
        if self.heads % self.kv_heads:
            raise UserError(f"model.kv_heads={self.kv_heads} does not divide model.heads={self.heads}.")
        if self.positions == "rotary" and self.head_size % 2:
            raise UserError(f"rotary positions turn pairs, and model.head_size={self.head_size} is odd. Make it even.")

    def _fill(self, name: str, value: int) -> None:
        if not getattr(self, name):
            object.__setattr__(self, name, value)
