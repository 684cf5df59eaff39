"""The encoder–decoder beside the contract: torch.nn's with the same weights, its source, its state, its settings."""

from typing import Any

import pytest
import torch
from models.source_batches import FEATURES, VOCAB, some_batch
from torch import Tensor, nn
from torch.testing import assert_close

from chainrule.errors import UserError
from chainrule.layers.blocks import TransformerStack
from chainrule.model import Batch, cross_entropy, join, pick, taps, watch
from chainrule.models.transformer import EncoderDecoder, EncoderDecoderSettings

SMALL: dict[str, Any] = {"layers": 2, "width": 16, "heads": 4, "context": 32, "zero_init": False}
LIKE_TORCH = {
    "positions": "none", "norm": "layer", "norm_scale": True, "biases": True, "qk_norm": False, "norm_embedding": False,
    "activation": "relu", "epsilon": 1e-5, "hidden": 24,
}
CHOICES: list[dict[str, Any]] = [
    {},
    {"norm_first": False, "norm": "layer", "norm_scale": True, "positions": "sinusoidal", "activation": "relu"},
    {"positions": "relative", "kv_heads": 2, "tied": True, "logit_softcap": 5.0},
    {"positions": "learned", "source_vocab": 7, "tied": False, "biases": True},
    {"source_features": FEATURES, "window": 3, "qk_norm": False},
    {"start_vector": True, "activation": "geglu", "scaled": False},
]
every_choice = pytest.mark.parametrize("choice", CHOICES, ids=str)


def made(**settings: Any) -> EncoderDecoder:
    torch.manual_seed(1)
    model = EncoderDecoder(EncoderDecoderSettings(**{**SMALL, **settings}), VOCAB).eval()
    for stack in (model.stack, model.encoder):
        if stack.bias is not None:
            nn.init.normal_(stack.bias.weight)
    return model


def by_steps(model: EncoderDecoder, batch: Batch) -> Tensor:
    state, columns = model.begin(batch), []
    for column in batch.tokens.split(1, 1):
        logits, state = model.step(column, state)
        columns.append(logits)
    return torch.cat(columns, 1)


# Against torch.nn


def of_torch(model: EncoderDecoder) -> tuple[nn.TransformerEncoder, nn.TransformerDecoder]:
    settings = model.settings
    how: Any = {"dropout": 0.0, "batch_first": True, "norm_first": settings.norm_first}
    size = (settings.width, settings.heads, settings.hidden)
    last = [nn.LayerNorm(settings.width) if settings.norm_first else None for _ in range(2)]
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(*size, **how), 2, last[0], enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(*size, **how), 2, last[1])
    fill(encoder, model.encoder)
    fill(decoder, model.stack)
    return encoder, decoder


def fill(theirs: Any, ours: TransformerStack) -> None:
    """Give torch's stack our weights."""
    norms = ["attention_norm", "cross_norm", "feed_forward_norm"]
    for layer, block in zip(theirs.layers, ours.blocks):
        copy(layer.self_attn.out_proj, block.attention.out)
        copy(layer.linear1, block.feed_forward.up)
        copy(layer.linear2, block.feed_forward.out)
        copy_input(layer.self_attn, [block.attention.project])
        if block.cross is not None:
            copy(layer.multihead_attn.out_proj, block.cross.out)
            copy_input(layer.multihead_attn, [block.cross.queries, block.cross.memory])
        for number, name in enumerate((name for name in norms if getattr(block, name) is not None), 1):
            copy(getattr(layer, f"norm{number}"), getattr(block, name))
    if theirs.norm is not None:
        copy(theirs.norm, ours.norm)


def copy(to: Any, from_: Any) -> None:
    to.load_state_dict(from_.state_dict())


def copy_input(attention: nn.MultiheadAttention, parts: list[Any]) -> None:
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        attention.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))


@pytest.mark.filterwarnings("ignore:.*TransformerEncoder.*fast path.*")
@pytest.mark.parametrize("norm_first", [True, False])
def test_it_is_torchs_transformer_with_the_same_weights(norm_first: bool) -> None:
    model = made(**LIKE_TORCH, norm_first=norm_first)
    for parameter in model.parameters():    # gains and biases too, so that none can be left out unnoticed
        nn.init.normal_(parameter, std=0.3)
    encoder, decoder = of_torch(model)
    batch, tokens = some_batch(model), model.embedding.tokens
    assert batch.source is not None
    assert batch.source_lengths is not None
    ahead = torch.ones(6, 6, dtype=torch.bool).triu(1)
    beyond = torch.arange(5) >= batch.source_lengths[:, None]
    memory = encoder(tokens(batch.source), src_key_padding_mask=beyond)
    hidden = decoder(tokens(batch.tokens), memory, ahead, memory_key_padding_mask=beyond)
    wanted = hidden @ model.output_matrix.T
    logits = model(batch)
    assert_close(logits, wanted, atol=1e-4, rtol=1e-4)
    ours, theirs = (torch.autograd.grad(cross_entropy(each, batch)[0], tokens.weight)[0] for each in (logits, wanted))
    assert_close(ours, theirs, atol=1e-3, rtol=1e-3)


# The state


@every_choice
def test_decoding_step_by_step_gives_the_same_watched_or_not(choice: dict[str, Any]) -> None:
    model = made(**choice)
    batch = some_batch(model)
    with torch.no_grad():
        whole = model(batch)
        assert_close(by_steps(model, batch), whole)
        with watch(model) as seen:
            assert_close(model(batch), whole)
            assert_close(by_steps(model, batch), whole)
    pattern = seen["stack.blocks.1.cross.pattern"][0]
    assert pattern.shape == (3, 4, 6, 5)
    assert_close(pattern.sum(-1), torch.ones(3, 4, 6))
    assert bool((pattern[1, :, :, 2:] == 0).all())
    assert bool((pattern[0] > 0).all())
    assert len(seen["encoder.blocks.0.attention.pattern"]) == 2    # the source is read once a start, not once a step


@every_choice
def test_the_padding_of_a_source_changes_nothing(choice: dict[str, Any]) -> None:
    model = made(**choice)
    batch = some_batch(model)
    assert batch.source is not None
    with torch.no_grad():
        together = model(batch)
        for row, size in ((1, 2), (2, 4)):
            here = slice(row, row + 1)
            alone = Batch(batch.tokens[here], batch.targets[here], source=batch.source[here, :size])
            assert_close(together[row], model(alone)[0], atol=1e-5, rtol=1e-5)


def test_texts_with_sources_of_different_lengths_go_on_together() -> None:
    model = made()
    batch = some_batch(model)
    assert batch.source is not None
    with torch.no_grad():
        wanted = model(batch)[:, -1]
        states = []
        for row, size in enumerate((5, 2, 4)):
            state = model.start(1, batch.source[row : row + 1, :size])
            states.append(model.step(batch.tokens[row : row + 1, :-1], state)[1])
        state = pick(join(states), torch.tensor([2, 0, 1]))
        logits, _ = model.step(batch.tokens[[2, 0, 1], -1:], state)
    assert_close(logits[:, 0], wanted[[2, 0, 1]])


@every_choice
def test_the_training_loss_has_the_gradients_of_cross_entropy_for_every_parameter(choice: dict[str, Any]) -> None:
    plain, chunked = made(**choice), made(**choice)
    batch = some_batch(plain)
    cross_entropy(plain(batch), batch)[0].backward()
    total, _, state = chunked.loss(batch)
    total.backward()
    assert state is None
    for (name, one), other in zip(plain.named_parameters(), chunked.parameters()):
        assert one.grad is not None, name
        assert one.grad.abs().max() > 0, name
        assert_close(one.grad, other.grad, atol=1e-4, rtol=1e-4)


@every_choice
def test_it_runs_in_bf16(choice: dict[str, Any]) -> None:
    model = made(**choice)
    batch = some_batch(model)
    with torch.no_grad():
        exact = model(batch)
        with torch.autocast("cpu", torch.bfloat16):
            whole, steps, state = model(batch), by_steps(model, batch), model.begin(batch)
    assert state["source_keys"].dtype == torch.bfloat16
    assert_close(whole.float(), exact, atol=0.2, rtol=0.1)
    assert_close(steps.float(), exact, atol=0.2, rtol=0.1)


def test_it_learns_to_reverse_a_text() -> None:
    torch.manual_seed(1)
    model = EncoderDecoder(EncoderDecoderSettings(**{**SMALL, "width": 32, "zero_init": True}), VOCAB)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    source = torch.randint(1, VOCAB, (64, 4), generator=torch.Generator().manual_seed(3))
    text = torch.cat([torch.zeros(64, 1, dtype=torch.long), source.flip(1)], 1)
    batch = Batch(text[:, :-1], text[:, 1:], source=source)
    for _ in range(80):
        optimizer.zero_grad()
        nats, count, _ = model.loss(batch)
        (nats / count).backward()
        optimizer.step()
    assert float(nats.detach() / count) < 0.1                  # without its source it would pay log 10


# Vocabularies, taps, settings


def test_source_and_text_share_an_embedding_unless_the_source_has_its_own() -> None:
    shared = made()
    assert shared.source_embedding.tokens is shared.embedding.tokens
    assert made(source_vocab=7).source_embedding.tokens.weight.shape == (7, 16)
    assert isinstance(made(source_features=5).source_embedding.tokens, nn.Linear)


def test_a_start_vector_is_of_the_decoder_alone() -> None:
    """As a decoder that reads another token at the beginning, with the vector of the boundary plus the start vector."""
    model, plain, last = made(start_vector=True, tied=False), made(tied=False), VOCAB - 1
    start, source = model.get_parameter("embedding.start"), torch.tensor([[2, 3, 0], [4, 0, 0]])
    nn.init.normal_(start)
    nn.init.normal_(model.output_matrix)
    plain.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        plain.embeddings[last] = model.embeddings[0] + start
        lengths, text = torch.tensor([3, 2]), torch.tensor([[0, 2, 3], [0, 1, 4]])
        found = by_steps(model, Batch(text, text, source=source, source_lengths=lengths))
        text[:, 0] = last
        assert_close(found, plain(Batch(text, text, source=source, source_lengths=lengths)))


def test_encoder_and_decoder_have_taps_in_every_block() -> None:
    names = set(taps(made()))
    assert {"encoder.blocks.1.attention.pattern", "stack.blocks.0.cross.pattern", "stack.blocks.1.hidden"} <= names
    assert "encoder.blocks.0.cross.pattern" not in names


def test_with_zero_init_no_block_changes_a_residual_stream() -> None:
    model = made(zero_init=True, tied=False)
    assert_close(model(some_batch(model)), torch.zeros(3, 6, VOCAB))


def test_a_source_of_a_wrong_shape_is_refused() -> None:
    model, vectors = made(), made(source_features=FEATURES)
    tokens = torch.ones(2, 4, dtype=torch.long)
    with pytest.raises(UserError, match="needs a source, and it was given none"):
        model.start(2)
    with pytest.raises(UserError, match="the source is 2 x 4 x 5, and this model reads tokens"):
        model.start(2, torch.zeros(2, 4, FEATURES))
    with pytest.raises(UserError, match="the source is 2 x 4, and this model reads vectors, rows x vectors x 5"):
        vectors.start(2, tokens)
    with pytest.raises(UserError, match="the source is 2 x 4 x 3, and"):
        vectors.start(2, torch.zeros(2, 4, 3))
    with pytest.raises(UserError, match="the source is 2 x 4 for 3 texts"):
        model.start(3, tokens)
    with pytest.raises(UserError, match="the source is 2 x 0 for 2 texts: each text needs one"):
        model.start(2, tokens[:, :0])
    with pytest.raises(UserError, match=r"a source of 33 tokens is longer than model\.context=32"):
        model.start(1, torch.ones(1, 33, dtype=torch.long))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"source_vocab": 0}, "model.source_vocab=0: it must be 1 or more"),
        ({"source_vocab": 5, "source_features": 5}, "a source is either"),
        ({"logit_softcap": -1.0}, "model.logit_softcap=-1"),
    ],
)
def test_a_wrong_setting_says_what_is_wrong(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        EncoderDecoderSettings(**{**SMALL, **given})
