"""A small hierarchical vision transformer as a layer list, in the manner of Swin (Liu et al., 2021): its layers differ by construction.

Attention runs inside windows of a grid; between the levels four neighbours become one and the width doubles, so that early layers have many
narrow tokens and late ones few wide ones, with other shapes at each border. B images, G grid side, D width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

import pptoolkit as pp


class PatchEmbedding(nn.Module):
    """(B, 3, image, image) to (B, G, G, D)."""

    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, width, patch, stride=patch)

    def forward(self, images: Tensor) -> Tensor:
        return self.project(images).permute(0, 2, 3, 1).contiguous()  # type: ignore[no-any-return]


class WindowBlock(nn.Module):
    """Attention within windows, every other block shifted by half a window; then an MLP. (B, G, G, D) to the same."""

    def __init__(self, width: int, heads: int, window: int, *, shifted: bool) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, window // 2 if shifted else 0
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp_in, self.mlp_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BGGD: Tensor) -> Tensor:
        moved = torch.roll(self.attention_norm(x_BGGD), (-self.shift, -self.shift), (1, 2))
        mixed = torch.roll(self._attend(moved), (self.shift, self.shift), (1, 2))
        x_BGGD = x_BGGD + self.output(mixed)
        return x_BGGD + self.mlp_out(functional.gelu(self.mlp_in(self.mlp_norm(x_BGGD))))  # type: ignore[no-any-return]

    def _attend(self, x_BGGD: Tensor) -> Tensor:
        batch, grid, _, width = x_BGGD.shape
        w, n = self.window, grid // self.window
        windows = x_BGGD.view(batch, n, w, n, w, width).transpose(2, 3).reshape(batch * n * n, w * w, width)
        qkv = self.query_key_value(windows).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2]).transpose(1, 2).flatten(2)
        return mixed.view(batch, n, n, w, w, width).transpose(2, 3).reshape(batch, grid, grid, width)


class PatchMerging(nn.Module):
    """(B, G, G, D) to (B, G/2, G/2, 2D)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width)

    def forward(self, x_BGGD: Tensor) -> Tensor:
        batch, grid, _, width = x_BGGD.shape
        four = x_BGGD.view(batch, grid // 2, 2, grid // 2, 2, width).transpose(2, 3).reshape(batch, grid // 2, grid // 2, 4 * width)
        return self.reduce(self.norm(four))  # type: ignore[no-any-return]


class ClassHead(nn.Module):
    """(B, G, G, D) to class scores (B, classes)."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm, self.project = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x_BGGD: Tensor) -> Tensor:
        return self.project(self.norm(x_BGGD).mean(dim=(1, 2)))  # type: ignore[no-any-return]


def swin_like_layers(*, image: int, patch: int, width: int, depths: list[int], heads: int, window: int, classes: int) -> list[pp.Layer]:
    """Return the layers: patch embedding, blocks and mergings level by level, head."""
    assert (image // patch) % (window * 2 ** (len(depths) - 1)) == 0, "every level's grid must be whole windows"
    layers = [pp.Layer("patches", PatchEmbedding, patch, width)]
    for level, depth in enumerate(depths):
        wide = width * 2**level
        layers += [
            pp.Layer(f"level{level}.block{i}", WindowBlock, wide, heads * 2**level, window, shifted=bool(i % 2)) for i in range(depth)
        ]
        if level + 1 < len(depths):
            layers.append(pp.Layer(f"level{level}.merge", PatchMerging, wide))
    return [*layers, pp.Layer("head", ClassHead, width * 2 ** (len(depths) - 1), classes)]


def swin_like_loss(scores: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross entropy."""
    return functional.cross_entropy(scores, target)
