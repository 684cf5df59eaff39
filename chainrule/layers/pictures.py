"""Convolutional encoder of pictures (a small CNN): its feature map is the source that a decoder attends to.

    x ← pool(relu(W * x + b))     * : convolution with 3 x 3 filters;  pool: the maximum of each 2 x 2 pixels
    vectors_i = x_i + p_i         one for each place i of the last map, row by row, with a learned position

Pictures of four axes are video: filters and pooling then cover 3 x 3 x 3 and 2 x 2 x 2 (3-D convolution).

Shapes: B rows, H x W pixels, C channels, S places of the feature map, F its channels.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from chainrule.model import Tap

FILTER, POOL = 3, 2
CONVOLUTIONS: dict[int, tuple[type[nn.Module], type[nn.Module]]] = {
    2: (nn.Conv2d, nn.MaxPool2d), 3: (nn.Conv3d, nn.MaxPool3d)
}
BYTE = 255.0                    # pictures are bytes, which are scaled to -1 … 1


def map_size(picture: Sequence[int], convolutions: Sequence[int]) -> int:
    """S: places of the last feature map. Pooling between the convolutions halves each side, rounded up."""
    halved = POOL ** (len(convolutions) - 1)
    return math.prod(-(-side // halved) for side in picture[:-1])


class PictureEncoder(nn.Module):
    def __init__(self, picture: Sequence[int], convolutions: Sequence[int]):
        """`picture`: height, width and channels, frames before them in a video; `convolutions`: channels of each."""
        super().__init__()
        convolution, pool = CONVOLUTIONS[len(picture) - 1]
        sizes = [picture[-1], *convolutions]
        self.layers = nn.ModuleList(
            convolution(before, after, FILTER, padding=FILTER // 2) for before, after in zip(sizes, convolutions)
        )
        self.pool = pool(POOL, ceil_mode=True)
        self.positions = nn.Parameter(0.02 * torch.randn(map_size(picture, convolutions), convolutions[-1]))
        self.feature_map = Tap()                               # (B, S, F), without the positions

    def forward(self, pictures: Tensor) -> Tensor:
        """(B, H, W, C) or (B, frames, H, W, C) bytes, or numbers from 0 to 1 -> (B, S, F)"""
        scale = BYTE if pictures.dtype == torch.uint8 else 1.0
        x = 2 * pictures.movedim(-1, 1).to(self.positions.dtype) / scale - 1
        for number, layer in enumerate(self.layers):
            x = torch.relu(layer(self.pool(x) if number else x))
        found: Tensor = self.feature_map(x.flatten(2).mT)
        return found + self.positions
