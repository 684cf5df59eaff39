"""The encoder: torch.nn's and Hugging Face's BERT with the same weights, both sides seen, padding never."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers import BertConfig, BertForMaskedLM

from chainrule.errors import UserError
from chainrule.formats.hugging_face import bert_settings, from_bert, to_bert
from chainrule.model import IGNORE, Batch, cross_entropy, watch
from chainrule.models.encoder import EncoderSettings, TransformerEncoder

VOCAB = 23
SMALL: dict[str, Any] = {"layers": 2, "width": 16, "heads": 4, "context": 16, "zero_init": False}
CHOICES: list[dict[str, Any]] = [
    {},
    {"positions": "relative", "tied": True, "transform": True},
    {"positions": "learned", "norm_first": False, "norm": "layer", "biases": True, "segments": 2, "transform": True},
]
every_choice = pytest.mark.parametrize("choice", CHOICES, ids=str)


def made(**settings: Any) -> TransformerEncoder:
    torch.manual_seed(1)
    return TransformerEncoder(EncoderSettings(**{**SMALL, **settings}), VOCAB).eval()


def some_batch() -> Batch:
    """Two tokens of each row are masked. No token is 0, which BERT takes for padding and does not train on."""
    tokens = torch.randint(1, VOCAB, (3, 9), generator=torch.Generator().manual_seed(2))
    targets = torch.full_like(tokens, IGNORE)
    targets[:, [0, 2]] = tokens[:, [0, 2]]
    return Batch(tokens, targets, torch.tensor([9, 3, 6]))


def bert() -> tuple[TransformerEncoder, BertForMaskedLM]:
    config = BertConfig(
        vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
        max_position_embeddings=16,
    )
    ours = TransformerEncoder(bert_settings(config.to_dict(), transform=True), VOCAB).eval()
    torch.manual_seed(1)
    for parameter in ours.parameters():    # gains and biases too, so that none can be left out unnoticed
        nn.init.normal_(parameter, std=0.3)
    theirs = BertForMaskedLM(config).eval()
    theirs.load_state_dict(to_bert(ours), strict=True)
    return ours, theirs


def test_it_is_bert_with_the_same_weights() -> None:
    (ours, theirs), batch = bert(), some_batch()
    assert batch.lengths is not None
    real = torch.arange(9) < batch.lengths[:, None]
    segments = (torch.arange(9) > 4).long().expand(3, -1)
    wanted = theirs(batch.tokens, attention_mask=real.long()).logits
    assert_close(ours(batch)[real], wanted[real], atol=1e-4, rtol=1e-4)
    hidden = ours.encode(batch.tokens, batch.lengths, segments=segments)
    wanted = theirs.bert(batch.tokens, attention_mask=real.long(), token_type_ids=segments).last_hidden_state
    assert_close(hidden[real], wanted[real], atol=1e-4, rtol=1e-4)


def test_its_gradients_are_those_of_bert() -> None:
    (ours, theirs), batch = bert(), some_batch()
    assert batch.lengths is not None
    real = torch.arange(9) < batch.lengths[:, None]
    labels = batch.targets.where(batch.loss_mask, -100)
    theirs(batch.tokens, attention_mask=real.long(), labels=labels).loss.backward()
    nats, count, _ = ours.loss(batch)
    (nats / count).backward()
    found = {name: parameter.grad for name, parameter in ours.named_parameters()}
    wanted = from_bert({name: parameter.grad for name, parameter in theirs.named_parameters()})
    assert found.keys() == wanted.keys()
    assert_close(found, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("norm_first", [True, False])
def test_it_is_torchs_encoder_with_the_same_weights(norm_first: bool) -> None:
    model = made(
        positions="none", norm="layer", norm_scale=True, biases=True, qk_norm=False, norm_embedding=False,
        activation="gelu", epsilon=1e-5, hidden=24, norm_first=norm_first,
    )
    how: Any = {"dropout": 0.0, "batch_first": True, "norm_first": norm_first, "activation": "gelu"}
    last = nn.LayerNorm(16) if norm_first else None
    reference = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 24, **how), 2, last, enable_nested_tensor=False)
    names = {
        "self_attn.in_proj_": "attention.project.", "self_attn.out_proj.": "attention.out.",
        "linear1.": "feed_forward.up.", "linear2.": "feed_forward.out.",
        "norm1.": "attention_norm.", "norm2.": "feed_forward_norm.",
    }
    ours, weights = dict(model.stack.state_dict()), {}
    for name in reference.state_dict():
        mine = name.replace("layers.", "blocks.")
        for their, our in names.items():
            mine = mine.replace(their, our)
        weights[name] = nn.init.normal_(ours[mine], std=0.3)
    reference.load_state_dict(weights)
    batch = some_batch()
    assert batch.lengths is not None
    beyond = torch.arange(9) >= batch.lengths[:, None]
    wanted = reference(model.embedding.tokens(batch.tokens), src_key_padding_mask=beyond)
    assert_close(model.encode(batch.tokens, batch.lengths)[~beyond], wanted[~beyond], atol=1e-4, rtol=1e-4)


@every_choice
def test_every_token_attends_to_all_of_its_text_and_no_padding(choice: dict[str, Any]) -> None:
    model, batch = made(**choice), some_batch()
    vectors = model.encode(batch.tokens, batch.lengths)
    assert_close(vectors[1, :3], model.encode(batch.tokens[1:2, :3])[0], atol=1e-5, rtol=1e-5)
    other = batch.tokens.clone()
    other[0, 8] = (other[0, 8] + 1) % VOCAB
    changed = model.encode(other, batch.lengths)
    assert not torch.isclose(changed[0, 0], vectors[0, 0]).all()    # the last token is seen by the first
    assert_close(changed[1:], vectors[1:])                          # and by no other row
    with watch(model, "stack.blocks.0.attention.pattern") as seen:
        assert_close(model.encode(batch.tokens, batch.lengths), vectors)
    assert bool((seen["stack.blocks.0.attention.pattern"][0][1, :, :, 3:] == 0).all())


@every_choice
def test_the_loss_is_that_of_the_masked_tokens_and_has_gradients_for_every_parameter(choice: dict[str, Any]) -> None:
    plain, chosen, batch = made(**choice), made(**choice), some_batch()
    results = [cross_entropy(plain(batch), batch), chosen.loss(batch)[:2]]
    assert_close(results[0], results[1])
    assert int(results[0][1]) == 6
    for nats, _ in results:
        nats.backward()
    for (name, one), other in zip(plain.named_parameters(), chosen.parameters()):
        assert one.grad is not None, name
        assert one.grad.abs().max() > 0, name
        assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-4)


def test_a_batch_without_masked_tokens_has_no_loss() -> None:
    batch = some_batch()
    nats, count, _ = made().loss(Batch(batch.tokens, torch.full_like(batch.tokens, IGNORE), batch.lengths))
    assert (float(nats.detach()), int(count)) == (0, 0)


def test_it_learns_masked_tokens_from_both_sides() -> None:
    """The token in the middle is the sum of its neighbours, so one side is not enough."""
    torch.manual_seed(1)
    model = TransformerEncoder(EncoderSettings(**{**SMALL, "width": 32}), VOCAB)
    a, b = torch.meshgrid(torch.arange(10), torch.arange(10), indexing="ij")
    tokens = torch.stack([a.flatten(), torch.full((100,), VOCAB - 1), b.flatten()], 1)
    targets = torch.full_like(tokens, IGNORE)
    targets[:, 1] = tokens[:, 0] + tokens[:, 2]
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(150):
        optimizer.zero_grad()
        nats, count, _ = model.loss(Batch(tokens, targets))
        (nats / count).backward()
        optimizer.step()
    assert float(nats.detach() / count) < 0.2


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"window": 3}, "model.window=3: an encoder attends to all"),
        ({"segments": -1}, "model.segments=-1"),
        ({"transform": True, "activation": "swiglu"}, "model.transform has no gates"),
    ],
)
def test_a_wrong_setting_says_what_is_wrong(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        EncoderSettings(**{**SMALL, **given})


def test_a_text_longer_than_the_context_is_refused() -> None:
    with pytest.raises(UserError, match=r"17 tokens is longer than model.context=16"):
        made().encode(torch.zeros(1, 17, dtype=torch.long))
