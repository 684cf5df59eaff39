"""The settings of Transformers: layers, width, heads, positions, norms; and `size`, one setting for all measures."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from chainrule.errors import UserError
from chainrule.settings import BelowOne, NonNegative, Positive, Range, Settings, Size

SIZES = {    # layers, width, heads, context
    "tiny": (4, 128, 4, 128),
    "small": (6, 384, 6, 256),
    "medium": (12, 768, 6, 1024),
    "large": (24, 1024, 8, 1024),
    "xl": (24, 2048, 16, 2048),
}
ROPE_THETA = 10_000.0
GATED = ("swiglu", "geglu")
HIDDEN_MULTIPLE = 64    # the hidden size of a gated layer is rounded up to a multiple of this, if it is not given
EXPERT_MULTIPLE = 16    # and that of an expert to a multiple of this
SizeOr0 = Annotated[int, Range(0, 1 << 24)]
AttentionKind = Literal["full", "local", "sliding", "compressed"]
SIZES_OF_KINDS = {    # the setting of each kind of attention, and its usual value (Liu et al. 2018)
    "sliding": ("window", 256),
    "local": ("block", 256),
    "compressed": ("stride", 3),
}
Scaling = Literal["none", "linear", "ntk", "yarn", "llama3"]


class RopeScaling(NamedTuple):
    """How RoPE is stretched to texts longer than those of training (positions.py: rope_frequencies)."""

    kind: Scaling = "none"
    factor: float = 1.0         # longest text now / longest text of training
    trained: int = 0            # tokens of the longest text of training


@dataclass(frozen=True)
class TransformerSettings(Settings):
    size: Literal["tiny", "small", "medium", "large", "xl"] | None = None  # sets those that are 0 below; none: small
    layers: Annotated[int, Range(0, 10_000)] = 0  # Transformer blocks; 0: by the size
    width: Annotated[int, Range(0, 1 << 22)] = 0  # dimension of the residual stream; 0: by the size
    heads: Annotated[int, Range(0, 1 << 22)] = 0  # attention heads; 0: by the size
    context: SizeOr0 = 0        # longest sequence, in tokens; 0: by the size
    head_size: Annotated[int, Range(0, 1 << 13)] = 0  # dimension of a head; 0: width / heads
    kv_heads: SizeOr0 = 0       # key/value heads (grouped-query attention); 0: as many as heads
    attention: tuple[AttentionKind, ...] = ()  # what a layer attends to; a list (local,compressed) is repeated over
    # the layers. Empty: full, or sliding where model.window is given
    window: Size | None = None  # sliding attention: tokens that a token attends to, with itself; none: 256
    block: Size | None = None   # local attention: tokens of a block, which attend to each other only; none: 256
    stride: Annotated[int, Range(2, 1 << 16)] | None = None  # compressed attention: tokens of one key; none: 3
    qkv: bool = True            # queries, keys and values are linear maps of x; false: x itself, softmax(X Xᵀ / √d) X
    scaled: bool = True         # scaled dot-product attention: scores are divided by √d
    hidden: SizeOr0 = 0         # hidden units of the feed-forward layer; 0: 4 · width, or 8/3 · width where it is gated
    experts: Annotated[int, Range(0, 1 << 16)] = 0  # mixture of experts: feed-forward layers in a block; 0: one layer
    active: Size | None = None  # experts that a token uses; none: 2. With model.hidden=0 they cost as much as one layer
    shared_expert: bool = False  # one more expert, which every token uses
    renormalise: bool = True    # the weights of a token's experts are divided by their sum (Mixtral); false: OLMoE
    balance_loss: NonNegative = 0.01  # coefficient of the load-balancing loss of the router
    router_z_loss: NonNegative = 0.001  # coefficient of the router z-loss
    positions: Literal["rotary", "learned", "sinusoidal", "relative", "alibi", "none"] = "rotary"  # position encoding
    rope_theta: Positive = ROPE_THETA  # RoPE base θ
    rope_scaling: Scaling = "none"  # RoPE beyond the trained length: position interpolation, NTK-aware θ, YaRN, Llama 3
    rope_factor: Annotated[float, Range(1, 1 << 20)] = 1.0  # context / trained_context, by which RoPE is stretched
    trained_context: SizeOr0 = 0  # context before it was stretched by rope_factor; 0: context / rope_factor
    norm: Literal["rms", "layer"] = "rms"  # RMSNorm or LayerNorm
    norm_first: bool = True     # pre-norm: norm the input of each sub-layer; false: post-norm, as in 2017
    norm_embedding: bool = True  # norm the embeddings before the first block
    qk_norm: bool = True        # norm queries and keys before their dot product
    norm_scale: bool = False    # norms have a learned scale
    epsilon: Positive = 1e-6    # added to the variance in a norm, so that it never divides by 0
    activation: Literal["relu2", "relu", "gelu", "gelu-tanh", "swiglu", "geglu"] = "relu2"  # of the feed-forward layer
    biases: bool = False        # linear layers and LayerNorms have a learned bias; experts have none
    dropout: BelowOne = 0.0     # dropout of embeddings, attention weights and each sub-layer's output
    attention_dropout: BelowOne | None = None  # dropout of attention weights; none: as dropout. Above 0 torch has no
    # fused attention on a CPU
    zero_init: bool = True      # zero-initialise the output projections
    init: NonNegative = 0.0     # standard deviation of the initial weights; 0: 1/√(inputs)

    adjustable: ClassVar[tuple[str, ...]] = ("context", "rope_scaling", "rope_factor", "trained_context")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rope_theta != ROPE_THETA and self.positions != "rotary":
            raise UserError(f"model.rope_theta={self.rope_theta:g} needs model.positions=rotary, not {self.positions}.")
        self._fill_sizes()
        self._check_experts()
        self._check_heads()
        self._check_scaling()
        self._check_attention()

    @property
    def gated(self) -> bool:
        """Whether the feed-forward layer has gates, and so twice as many linear maps up."""
        return self.activation in GATED

    @property
    def rope(self) -> RopeScaling:
        return RopeScaling(self.rope_scaling, self.rope_factor, self.trained_context)

    def adjusted(self, given: Mapping[str, Any]) -> Self:
        """A larger rope_factor makes the context longer by it, unless the context is given too."""
        made = super().adjusted(given)
        if made.context != self.context and self.positions == "learned":
            raise UserError(f"model.context={made.context} cannot be set here: model.positions=learned has vectors "
                            f"for {self.context} positions.")
        if made.rope_scaling == "none":
            return made
        trained = made.trained_context if "trained_context" in given else self.trained_context or self.context
        context = made.context if "context" in given else round(trained * made.rope_factor)
        return super().adjusted({**given, "context": context, "trained_context": trained})

    def _check_scaling(self) -> None:
        scaled = self.rope_scaling != "none"
        if not scaled and (self.rope_factor != 1 or self.trained_context):
            name = "rope_factor" if self.rope_factor != 1 else "trained_context"
            raise UserError(f"model.{name}={getattr(self, name):g} needs model.rope_scaling=linear, ntk, yarn or "
                            "llama3.")
        if scaled and self.positions != "rotary":
            raise UserError(f"model.rope_scaling={self.rope_scaling} needs model.positions=rotary, "
                            f"not {self.positions}.")
        if self.rope_scaling == "yarn" and self.rope_theta <= 1:
            raise UserError(f"model.rope_scaling=yarn needs model.rope_theta of more than 1, not {self.rope_theta:g}.")
        if self.rope_scaling == "ntk" and self.head_size < 4:
            raise UserError(f"model.rope_scaling=ntk needs heads of 4 numbers or more, not "
                            f"model.head_size={self.head_size}.")
        if scaled:
            self._fill("trained_context", max(1, round(self.context / self.rope_factor)))

    @property
    def attention_kinds(self) -> tuple[AttentionKind, ...]:
        """The kind of attention of each layer."""
        return tuple(self.attention[layer % len(self.attention)] for layer in range(self.layers))

    def span(self, kind: AttentionKind) -> int:
        """The most tokens that a layer of this kind attends to, with the query's own."""
        sizes = {"local": self.block, "sliding": self.window}
        return min(sizes.get(kind) or self.context, self.context)

    def _fill_sizes(self) -> None:
        """Fills in what was left open, so that a recipe says what was built even if the sizes change later."""
        names = ("layers", "width", "heads", "context")
        if self.size is not None and all(getattr(self, name) for name in names):
            raise UserError(f"model.size={self.size} changes nothing where {', '.join(names)} are given; leave it out.")
        for name, value in zip(names, SIZES[self.size or "small"]):
            self._fill(name, value)
        object.__setattr__(self, "size", None)

    def _check_experts(self) -> None:
        if not self.experts:
            if self.active is not None or self.shared_expert:
                given = "model.shared_expert=true" if self.active is None else f"model.active={self.active}"
                raise UserError(f"{given} is for a mixture of experts. Set model.experts too, such as model.experts=8.")
            return
        object.__setattr__(self, "active", self.active or min(2, self.experts))
        if self.active and self.active > self.experts:
            raise UserError(f"model.active={self.active}: there are only model.experts={self.experts} to choose from.")

    def _default_hidden(self) -> int:
        """The layer of one block. Experts share it: those that a token uses cost about as much as one layer."""
        hidden = -(-8 * self.width // 3 // HIDDEN_MULTIPLE) * HIDDEN_MULTIPLE if self.gated else 4 * self.width
        used = (self.active or 1) + self.shared_expert
        return hidden if used == 1 else -(-hidden // used // EXPERT_MULTIPLE) * EXPERT_MULTIPLE

    def _check_heads(self) -> None:
        if not self.head_size and self.width % self.heads:
            fit = [heads for heads in range(1, self.width + 1) if self.width % heads == 0]
            below = max(heads for heads in fit if heads < self.heads)
            near = " and ".join(map(str, [below, *(heads for heads in fit if heads > self.heads)][:2]))
            raise UserError(f"model.heads={self.heads} does not divide model.width={self.width}, as {near} would.")
        self._fill("head_size", self.width // self.heads)
        self._fill("kv_heads", self.heads)
        self._fill("hidden", self._default_hidden())
        if self.heads % self.kv_heads:
            raise UserError(f"model.kv_heads={self.kv_heads} does not divide model.heads={self.heads}.")
        if self.positions == "rotary" and self.head_size % 2:
            raise UserError(f"RoPE rotates pairs, and model.head_size={self.head_size} is odd. Make it even.")

    def _check_attention(self) -> None:
        """Fills in the kinds of attention and their sizes, and refuses what no layer would use."""
        if not self.attention:
            object.__setattr__(self, "attention", ("full",) if self.window is None else ("sliding",))
        kinds = ",".join(self.attention)
        if len(self.attention) > self.layers:
            raise UserError(f"model.attention={kinds} is {len(self.attention)} kinds for model.layers={self.layers}; "
                            "give one for each layer, or fewer, which are repeated.")
        for kind, (name, usual) in SIZES_OF_KINDS.items():
            given = getattr(self, name)
            if given is not None and kind not in self.attention:
                raise UserError(f"model.{name}={given} is for layers with model.attention={kind}, not {kinds}. "
                                "Leave one of the two out.")
            if given is None and kind in self.attention:
                object.__setattr__(self, name, usual)
        if not self.qkv:
            self._check_x_itself()

    def _check_x_itself(self) -> None:
        if "compressed" in self.attention:
            raise UserError("model.qkv=false leaves no keys and values that model.attention=compressed could shorten. "
                            "Choose another attention.")
        if self.kv_heads != self.heads or self.heads * self.head_size != self.width:
            raise UserError(f"model.qkv=false splits x itself into heads: {self.heads} of "
                            f"{self.width // self.heads} numbers each. Leave out model.kv_heads and model.head_size.")

    def _fill(self, name: str, value: int) -> None:
        if not getattr(self, name):
            object.__setattr__(self, name, value)
