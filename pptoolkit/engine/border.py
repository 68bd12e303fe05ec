"""What crosses a border between stages: nested tuples, lists, dicts and None around tensors, sent as a flat list of tensors.

The nesting is worked out once, when shapes are inferred; in a step only tensors travel. A tensor that stands in two places
travels once, and its gradients are summed where it came from.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pptoolkit.errors import TrainingError

TENSOR = "tensor"  # the whole structure of the commonest case
Structure = str | None | tuple[Any, ...]  # TENSOR, None, ("tuple", parts), ("list", parts) or ("dict", keys, parts)


class BorderTypeError(TypeError):
    """A value that is neither a tensor nor nested out of tensors."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and kind of one tensor at a border."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @property
    def bytes(self) -> int:
        size = self.dtype.itemsize
        for n in self.shape:
            size *= n
        return size

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "TensorSpec":
        return cls(tuple(tensor.shape), tensor.dtype, tensor.requires_grad)


Specs = tuple[TensorSpec, ...]


def flatten(value: Any) -> tuple[Structure, list[torch.Tensor]]:
    """Return the nesting of ``value`` and its tensors from left to right.

    Raises:
        BorderTypeError: Naming the type of what is neither tensor, None, tuple, list nor dict.
    """
    if isinstance(value, torch.Tensor):
        return TENSOR, [value]
    leaves: list[torch.Tensor] = []
    return _flatten(value, leaves), leaves


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    """Put ``leaves`` back where :func:`flatten` took them from."""
    return leaves[0] if structure == TENSOR else _unflatten(structure, iter(leaves))


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a nesting of anything, from left to right."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for entry in value.values() for t in tensors_in(entry)]
    if isinstance(value, tuple | list):
        return [t for entry in value for t in tensors_in(entry)]
    return []


@dataclass(frozen=True, slots=True)
class Border:
    """The border after one stage, for one distinct input shape.

    Args:
        structure: Nesting of (what the last layer returned, the skip connections that go on by name).
        names: Names of these skip connections.
        wire: The tensors that travel.
        leaf_to_wire: For each place in the structure, which of them stands there.
    """

    structure: Structure
    names: tuple[str, ...]
    wire: Specs
    leaf_to_wire: tuple[int, ...]
    bytes: int = field(init=False)  # of its tensors, and of the gradients that come back for them
    gradient_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes", sum(spec.bytes for spec in self.wire))
        object.__setattr__(self, "gradient_bytes", sum(spec.bytes for spec in self.wire if spec.requires_grad))

    @classmethod
    def of(cls, value: Any, skips: dict[str, Any]) -> "Border":
        """Describe a border by an example of what crosses it.

        Raises:
            BorderTypeError: If something in it cannot cross.
        """
        structure, leaves = flatten((value, *skips.values()) if skips else value)
        place: dict[int, int] = {}
        leaf_to_wire = tuple(place.setdefault(id(leaf), len(place)) for leaf in leaves)
        wire = {id(leaf): TensorSpec.of(leaf) for leaf in leaves}
        return cls(structure, tuple(skips), tuple(wire.values()), leaf_to_wire)

    def pack(self, value: Any, skips: dict[str, Any]) -> list[torch.Tensor]:
        """Return the tensors that travel for ``value`` and ``skips``.

        Raises:
            TrainingError: If they are not what shape inference found.
        """
        structure, leaves = flatten((value, *skips.values()) if skips else value)
        if structure != self.structure:
            raise TrainingError(
                f"the stage returned {describe(structure)}, but on shapes alone it had returned {describe(self.structure)}; "
                "what crosses a border may depend on the input's shapes, not on its values"
            )
        if len(leaves) > len(self.wire):
            first: dict[int, torch.Tensor] = {}
            for place, leaf in zip(self.leaf_to_wire, leaves, strict=True):
                first.setdefault(place, leaf)
            leaves = [first[place] for place in range(len(self.wire))]
        for spec, tensor in zip(self.wire, leaves, strict=True):
            if tensor.shape != spec.shape or tensor.dtype != spec.dtype or (tensor.requires_grad and not spec.requires_grad):
                raise TrainingError(
                    f"the stage returned a tensor of shape {list(tensor.shape)}, {tensor.dtype}"
                    f"{', with gradient' if tensor.requires_grad else ''}, but on shapes alone it had returned {list(spec.shape)}, "
                    f"{spec.dtype}; what crosses a border may depend on the input's shapes, not on its values"
                )
        return leaves

    def unpack(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the next stage's positional arguments and the skip connections, from the tensors that travelled."""
        if self.structure == TENSOR:
            return (tensors[0],), {}
        value = unflatten(self.structure, [tensors[place] for place in self.leaf_to_wire])
        skips: dict[str, Any] = {}
        if self.names:
            skips = dict(zip(self.names, value[1:], strict=True))
            value = value[0]
        return value if isinstance(value, tuple) else (value,), skips


def describe(structure: Structure) -> str:
    """Write a structure as a person would: ``(tensor, {'mask': None})``."""
    if not isinstance(structure, tuple):
        return str(structure)
    kind, *rest = structure
    parts = [describe(part) for part in rest[-1]]
    if kind == "dict":
        return "{" + ", ".join(f"{key!r}: {part}" for key, part in zip(rest[0], parts, strict=True)) + "}"
    return f"[{', '.join(parts)}]" if kind == "list" else f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _flatten(value: Any, leaves: list[torch.Tensor]) -> Structure:
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        leaves.append(value)
        return TENSOR
    kind = type(value)
    if kind is tuple or kind is list:
        return kind.__name__, tuple([_flatten(entry, leaves) for entry in value])
    if kind is dict and all(isinstance(key, str | int) for key in value):
        return "dict", tuple(value), tuple([_flatten(entry, leaves) for entry in value.values()])
    raise BorderTypeError(f"{kind.__name__} with keys that are no text" if kind is dict else kind.__name__)


def _unflatten(structure: Structure, leaves: Iterator[Any]) -> Any:
    if not isinstance(structure, tuple):
        return None if structure is None else next(leaves)
    kind, *rest = structure
    parts = [_unflatten(part, leaves) for part in rest[-1]]
    if kind == "dict":
        return dict(zip(rest[0], parts, strict=True))
    return tuple(parts) if kind == "tuple" else parts
