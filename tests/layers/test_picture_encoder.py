"""The convolutional encoder of pictures, against sums written out; and the kinds that read its feature map."""

from typing import Any

import numpy as np
import pytest
import torch

from chainrule import models
from chainrule.errors import UserError
from chainrule.layers.pictures import PictureEncoder, map_size
from chainrule.model import Batch
from chainrule.tasks import recipe_for

SMALL: dict[str, dict[str, Any]] = {
    "transformer": {"layers": 1, "width": 8, "heads": 2, "context": 16},
    "seq2seq": {"layers": 1, "hidden": 8, "dropout": 0.0},
}  # fmt: skip


def convolve(x: Any, weight: Any, bias: Any) -> Any:
    """(C, *sides) -> (K, *sides): for every place the sum over its neighbours, zeros beyond the edges; by loops."""
    sides = x.shape[1:]
    out = np.zeros((len(weight), *sides))
    for place in np.ndindex(*sides):
        for offset in np.ndindex(*weight.shape[2:]):
            at = tuple(p + o - 1 for p, o in zip(place, offset))
            if all(0 <= a < side for a, side in zip(at, sides)):
                out[(slice(None), *place)] += weight[(slice(None), slice(None), *offset)] @ x[(slice(None), *at)]
    return np.maximum(out + bias[(slice(None), *[None] * len(sides))], 0)


def pool(x: Any) -> Any:
    sides = [-(-side // 2) for side in x.shape[1:]]
    return np.stack([
        x[(slice(None), *(slice(2 * p, 2 * p + 2) for p in place))].reshape(len(x), -1).max(1)
        for place in np.ndindex(*sides)
    ], -1).reshape(len(x), *sides)


@pytest.mark.parametrize("picture", [(5, 4, 3), (3, 4, 3, 1)])
def test_the_feature_map_is_that_of_convolution_relu_and_pooling_by_loops(picture: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    encoder = PictureEncoder(picture, (4, 2)).double()
    pixels = torch.randint(256, (2, *picture), dtype=torch.uint8)
    found = encoder(pixels).detach().numpy()
    weights = [parameter.detach().numpy() for parameter in encoder.layers.parameters()]
    for number in range(2):
        x = np.moveaxis(2 * pixels[number].numpy().astype(float) / 255 - 1, -1, 0)
        x = convolve(pool(convolve(x, *weights[:2])), *weights[2:])
        expected = x.reshape(2, -1).T + encoder.positions.detach().numpy()
        np.testing.assert_allclose(found[number], expected, atol=1e-12)
    assert found.shape == (2, map_size(picture, (4, 2)), 2)


def made(kind: str, **settings: Any) -> Any:
    given = {f"model.{name}": value for name, value in {**SMALL[kind], **settings}.items()}
    recipe = recipe_for(kind, {"model.picture": (6, 4, 3), "model.convolutions": (4, 5), **given}, "caption")
    torch.manual_seed(0)
    return models.build(kind, recipe.model, 9).eval()


@pytest.mark.parametrize("kind", SMALL)
def test_a_caption_depends_on_its_own_picture(kind: str) -> None:
    model = made(kind, zero_init=False) if kind == "transformer" else made(kind)
    pictures, tokens = torch.randint(256, (2, 6, 4, 3), dtype=torch.uint8), torch.tensor([[0, 3, 4], [0, 5, 1]])
    both = model(Batch(tokens, tokens, source=pictures))
    torch.testing.assert_close(model(Batch(tokens[1:], tokens[1:], source=pictures[1:])), both[1:])
    other = pictures.clone()
    other[0, 5, 3] = 255 - other[0, 5, 3]
    changed = model(Batch(tokens, tokens, source=other))
    assert not torch.equal(changed[0], both[0])
    torch.testing.assert_close(changed[1], both[1])
    nats, count, _ = model.train().loss(Batch(tokens, tokens, source=pictures))
    nats.backward()
    assert count == 6
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.pictures.parameters())


@pytest.mark.parametrize("kind", SMALL)
def test_pictures_of_another_shape_are_refused(kind: str) -> None:
    with pytest.raises(UserError, match="reads pictures, rows x 6 x 4 x 3"):
        made(kind).start(1, torch.zeros(1, 4, 6, 3, dtype=torch.uint8))
    with pytest.raises(UserError, match="it is height, width and channels"):
        made(kind, picture=(6, 4))
    with pytest.raises(UserError, match="a source is one of them"):
        made(kind, source_features=3)
