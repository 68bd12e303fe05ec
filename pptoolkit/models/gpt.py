"""A decoder-only GPT as a layer list: "embed", "block00", ..., "head". One tensor (B, T, D) crosses each border.

Shapes: B samples, T tokens, D width, H heads, V vocabulary. The head is not tied to the embedding, so that each end is a
layer of its own weight: with a vocabulary of some thousands and a small width the head costs several blocks, which is the
imbalance that equal numbers of layers hide.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pptoolkit.engine.layers import Layer
from pptoolkit.engine.loss import WeightedLoss
from pptoolkit.errors import ConfigError

_MLP_RATIO = 4
_TOKEN_STD = 0.02  # of the embeddings and the head: logits start near 0, and the loss near log V


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTConfig:
    """The size of a GPT.

    Args:
        vocabulary: Number of tokens, V.
        width: Width of the residual stream, D; a multiple of ``heads``.
        depth: Number of blocks.
        heads: Attention heads, H.
        sequence: Longest sequence, T.
        dropout: Probability of dropping, in [0, 1), after the embedding, in the attention and before each residual sum.

    Raises:
        ConfigError: If a number is out of range, or the heads do not divide the width.
    """

    vocabulary: int = 4096
    width: int = 128
    depth: int = 8
    heads: int = 4
    sequence: int = 128
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("vocabulary", "width", "depth", "heads", "sequence"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"model.{name}={value!r} is out of range; use a whole number, 1 or more")
        if self.width % self.heads:
            raise ConfigError(
                f"model.heads={self.heads} does not divide model.width={self.width}; use a width that is a multiple of the heads"
            )
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"model.dropout={self.dropout} is out of range; use 0 or more and less than 1")


class Embedding(nn.Module):
    """Token plus position embedding: (B, T) token numbers to (B, T, D)."""

    def __init__(self, vocabulary: int, sequence: int, width: int, dropout: float, *, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width, dtype=dtype)
        self.position = nn.Embedding(sequence, width, dtype=dtype)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.token.weight, std=_TOKEN_STD)
        nn.init.normal_(self.position.weight, std=_TOKEN_STD)

    def forward(self, ids_BT: Tensor) -> Tensor:
        length, longest = ids_BT.shape[1], self.position.num_embeddings
        if length > longest:
            raise ValueError(
                f"the input has {length} tokens a sample and the model reads at most {longest}; cut the input or raise model.sequence"
            )
        x_BTD: Tensor = self.token(ids_BT) + self.position.weight[:length]
        return self.dropout(x_BTD)  # type: ignore[no-any-return]


class CausalAttention(nn.Module):
    """Multi-head attention in which a token sees itself and what came before it: (B, T, D) to (B, T, D)."""

    def __init__(self, width: int, heads: int, dropout: float, *, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query_key_value = nn.Linear(width, 3 * width, dtype=dtype)
        self.output = nn.Linear(width, width, dtype=dtype)

    def forward(self, x_BTD: Tensor) -> Tensor:
        qkv_3BHTd = self.query_key_value(x_BTD).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query_BHTd, key_BHTd, value_BHTd = qkv_3BHTd.unbind(0)
        mixed_BHTd = functional.scaled_dot_product_attention(
            query_BHTd, key_BHTd, value_BHTd, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        return self.output(mixed_BHTd.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A pre-norm transformer block: (B, T, D) to (B, T, D).

    Args:
        width: D.
        heads: H.
        dropout: In the attention and before each residual sum.
        depth: Number of blocks in the model. Every block adds two branches to the residual stream, so their last
            matrices start smaller by sqrt(2 depth) to keep its variance independent of the depth (Radford et al.,
            "Language models are unsupervised multitask learners", 2019).
        dtype: Of the parameters; None: torch's default.
    """

    def __init__(self, width: int, heads: int, dropout: float, *, depth: int, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, dtype=dtype)
        self.attention = CausalAttention(width, heads, dropout, dtype=dtype)
        self.mlp_norm = nn.LayerNorm(width, dtype=dtype)
        self.mlp_in = nn.Linear(width, _MLP_RATIO * width, dtype=dtype)
        self.mlp_out = nn.Linear(_MLP_RATIO * width, width, dtype=dtype)
        self.dropout = nn.Dropout(dropout)
        for linear in (self.attention.query_key_value, self.mlp_in):
            _initialise(linear)
        for linear in (self.attention.output, self.mlp_out):
            _initialise(linear, shrink=math.sqrt(2 * depth))

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.dropout(self.attention(self.attention_norm(x_BTD)))
        hidden_BTM = functional.gelu(self.mlp_in(self.mlp_norm(x_BTD)))
        return x_BTD + self.dropout(self.mlp_out(hidden_BTM))  # type: ignore[no-any-return]


class Head(nn.Module):
    """Final norm and projection to the vocabulary: (B, T, D) to logits (B, T, V)."""

    def __init__(self, width: int, vocabulary: int, *, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, dtype=dtype)
        self.projection = nn.Linear(width, vocabulary, bias=False, dtype=dtype)
        nn.init.normal_(self.projection.weight, std=_TOKEN_STD)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.projection(self.norm(x_BTD))  # type: ignore[no-any-return]


def gpt_layers(config: GPTConfig, *, dtype: torch.dtype | None = None) -> list[Layer]:
    """Return the model's ``depth + 2`` layers.

    Args:
        config: The model's size.
        dtype: Of the parameters and activations; None: torch's default when a layer is built.
    """
    c = config
    typed: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    return [
        Layer("embed", Embedding, c.vocabulary, c.sequence, c.width, c.dropout, **typed),
        *(Layer(f"block{i:02d}", Block, c.width, c.heads, c.dropout, depth=c.depth, **typed) for i in range(c.depth)),
        Layer("head", Head, c.width, c.vocabulary, **typed),
    ]


def next_token_loss(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Return the cross entropy in nats, averaged over all tokens."""
    return functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())


def loss_without(ignored: int) -> WeightedLoss:
    """Return :func:`next_token_loss` over the tokens that are not ``ignored``, e.g. padding: a mean over the whole batch's others."""

    def loss(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
        return functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), ignore_index=ignored)

    return WeightedLoss(loss, weight=lambda targets_BT: (targets_BT != ignored).sum())


def _initialise(linear: nn.Linear, *, shrink: float = 1.0) -> None:
    """Keep the variance of normalised inputs, divided by ``shrink`` squared."""
    nn.init.normal_(linear.weight, std=1 / (shrink * math.sqrt(linear.in_features)))
    nn.init.zeros_(linear.bias)
