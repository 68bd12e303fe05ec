"""Layouts of other trainers, read and written: how they write down which layers make a stage. Pure text.

    balance     torchgpipe and FairScale: the number of layers of each stage, ``balance=[3, 3, 2]``
    deepspeed   ``PipelineModule.parts``: the first layer of each stage and the end, ``[0, 3, 6, 8]``; stage 1 begins at layer 3
    megatron    ``--pipeline-model-parallel-layout``: ``Et*3|t*3|t*2L``, with E the embedding, t a decoder layer, L the loss and head, m an
                MTP layer, ``|`` between stages, ``*n`` for repeats and ``(...)`` around what is repeated

In Megatron's layout E and L are layers of ours where the model has them as such: the first and the last.
"""

import ast
import re
from collections.abc import Sequence
from enum import StrEnum
from itertools import accumulate, pairwise

from pptoolkit.errors import PlanError, counted

_MOST_STAGES = 100_000


class LayoutStyle(StrEnum):
    """How a layout is written."""

    BALANCE = "balance"
    DEEPSPEED = "deepspeed"
    MEGATRON = "megatron"


def read_layout(text: str, style: LayoutStyle | None = None) -> tuple[tuple[int, ...], int]:
    """Return (cuts, number of layers) of a layout.

    Args:
        text: The layout, e.g. ``"balance=[3, 3, 2]"``, ``"[0, 3, 6, 8]"`` or ``"Et*3|t*3|t*2L"``.
        style: How it is written; None: seen from the text. A list that begins with 0 is DeepSpeed's, any other is a balance.

    Raises:
        PlanError: If it is no layout, or leaves a stage empty.
    """
    chosen = style or _guess(text)
    if chosen is LayoutStyle.MEGATRON:
        sizes = [len(stage) for stage in _megatron_stages(text)]
    else:
        numbers = _numbers(text)
        if chosen is LayoutStyle.DEEPSPEED:
            if len(numbers) < 2 or numbers[0] != 0:
                raise PlanError(f"the layout {text!r} is not DeepSpeed's; its parts begin with 0 and end with the number of layers")
            sizes = [b - a for a, b in pairwise(numbers)]
        else:
            sizes = numbers
    for stage, size in enumerate(sizes):
        if size < 1:
            raise PlanError(f"the layout {text!r} gives stage {stage} {counted(size, 'layer')}; every stage needs at least 1")
    if not sizes:
        raise PlanError(f"the layout {text!r} has no stages; write e.g. [3, 3, 2]")
    ends = list(accumulate(sizes))
    return tuple(ends[:-1]), ends[-1]


def write_layout(cuts: Sequence[int], layers: int, style: LayoutStyle, *, ends: bool = True) -> str:
    """Return cuts in the writing of another trainer.

    Args:
        cuts: Cut points, as in a plan that fits ``layers`` layers.
        layers: Number of layers.
        style: Whose writing.
        ends: For Megatron: the first layer is the embedding and the last one the head.

    Raises:
        PlanError: If the cuts do not fit the layers.
    """
    edges = (0, *cuts, layers)
    if any(b <= a for a, b in pairwise(edges)):
        raise PlanError(f"cuts={list(cuts)} do not fit {counted(layers, 'layer')}; use increasing cut points from 1 to {layers - 1}")
    if style is LayoutStyle.BALANCE:
        return str([b - a for a, b in pairwise(edges)])
    if style is LayoutStyle.DEEPSPEED:
        return str(list(edges))
    if ends and layers < 2:
        raise PlanError("one layer cannot be both embedding and head; write the layout with ends=False")
    letters = ["t"] * layers
    if ends:
        letters[0], letters[-1] = "E", "L"
    return "|".join(_shorten(letters[a:b]) for a, b in pairwise(edges))


def _guess(text: str) -> LayoutStyle:
    if re.search(r"[EtLm|]", re.sub(r"^\s*balance\s*=", "", text)) and "[" not in text:
        return LayoutStyle.MEGATRON
    numbers = _numbers(text)
    return LayoutStyle.DEEPSPEED if numbers and numbers[0] == 0 else LayoutStyle.BALANCE


def _numbers(text: str) -> list[int]:
    body = re.sub(r"^\s*\w+\s*=\s*", "", text.strip())
    try:
        value = ast.literal_eval(body if body.startswith(("[", "(")) else f"[{body}]")
        numbers = [int(v) for v in value]
    except (ValueError, SyntaxError, TypeError) as error:
        raise PlanError(f"{text!r} is no layout; write e.g. balance=[3, 3, 2], [0, 3, 6, 8] or Et*3|t*3|t*2L") from error
    if any(not isinstance(v, int) or isinstance(v, bool) for v in value):
        raise PlanError(f"the layout {text!r} holds something other than whole numbers; write e.g. balance=[3, 3, 2]")
    return numbers


def _megatron_stages(text: str) -> list[str]:
    """Expand repeats, and return the letters of each stage."""
    flat = re.sub(r"[\s,]", "", text)
    group = re.compile(r"\(([^()]*)\)(?:\*(\d+))?")
    while (match := group.search(flat)) is not None:
        flat = flat[: match.start()] + _repeat(match[1], match[2], text) + flat[match.end() :]
    while (match := re.search(r"([EtLm|])\*(\d+)", flat)) is not None:
        flat = flat[: match.start()] + _repeat(match[1], match[2], text) + flat[match.end() :]
    if not re.fullmatch(r"[EtLm|]+", flat):
        wrong = re.sub(r"[EtLm|]", "", flat)
        raise PlanError(f"the layout {text!r} holds {wrong[:1]!r}; Megatron's letters are E, t, m, L, with | between stages, *n and (...)")
    return flat.split("|")


def _repeat(part: str, times: str | None, text: str) -> str:
    count = int(times) if times is not None else 1
    if len(part) * count > _MOST_STAGES:
        raise PlanError(f"the layout {text!r} repeats {part!r} {count} times; no model has so many layers")
    return part * count


def _shorten(letters: Sequence[str]) -> str:
    """Write runs of a letter with their number."""
    text = "".join(letters)
    return re.sub(r"t{3,}", lambda run: f"t*{len(run[0])}", text)
