"""Who takes what, beside the main stream from layer to layer: inputs of the batch, skip connections, tied parameters.

All of it is declared by name on the layers and resolved here, before anything is built, so that every rank knows for every
possible cut what has to cross it:

    layer    a (provides enc)    b    c    d (takes enc, mask)
    crosses                  enc   enc  enc                        mask comes with the batch, on every rank
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pptoolkit.engine.layers import Layer
from pptoolkit.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True)
class Tie:
    """One parameter that is another one: both by layer index and name in the layer."""

    layer: int
    parameter: str
    owner: int
    owner_parameter: str


@dataclass(frozen=True, slots=True)
class Wiring:
    """The declared connections of a model.

    Args:
        names: Layer names.
        takes: Per layer, the names it takes as keyword arguments.
        provides: Per layer, the name of its output, or "".
        carried: Per layer, the provided names that cross a cut right before it.
        batch_inputs: Names that come with the batch, each with the first layer that takes it.
        ties: Tied parameters, with owners that are tied to nothing themselves.
    """

    names: tuple[str, ...]
    takes: tuple[tuple[str, ...], ...]
    provides: tuple[str, ...]
    carried: tuple[tuple[str, ...], ...]
    batch_inputs: dict[str, str]
    ties: tuple[Tie, ...]

    @classmethod
    def of(cls, layers: Sequence[Layer]) -> "Wiring":
        """Resolve the names that ``layers`` declare.

        Raises:
            ConfigError: If a name is provided twice, taken before it is provided, or a tie leads nowhere.
        """
        provider: dict[str, int] = {}
        for index, layer in enumerate(layers):
            if layer.provides in provider:
                first = layers[provider[layer.provides]].name
                raise ConfigError(f"layers {first!r} and {layer.name!r} both provide {layer.provides!r}; give one of them another name")
            if layer.provides:
                provider[layer.provides] = index
        last_use: dict[str, int] = {}
        batch_inputs: dict[str, str] = {}
        for index, layer in enumerate(layers):
            for name in layer.inputs:
                if name not in provider:
                    batch_inputs.setdefault(name, layer.name)
                elif provider[name] >= index:
                    raise ConfigError(
                        f"layer {layer.name!r} takes {name!r}, which layer {layers[provider[name]].name!r} provides later; "
                        "a skip connection leads forward: let an earlier layer provide it"
                    )
                else:
                    last_use[name] = index
        carried = tuple(tuple(n for n, first in provider.items() if first < i <= last_use.get(n, -1)) for i in range(len(layers)))
        return cls(
            names=tuple(layer.name for layer in layers),
            takes=tuple(layer.inputs for layer in layers),
            provides=tuple(layer.provides for layer in layers),
            carried=carried,
            batch_inputs=batch_inputs,
            ties=_resolve_ties(layers),
        )

    def from_batch(self, part: range) -> tuple[str, ...]:
        """Return the batch inputs that the layers of ``part`` take."""
        return tuple(dict.fromkeys(n for i in part for n in self.takes[i] if n in self.batch_inputs))

    def handed_on(self, part: range) -> tuple[str, ...]:
        """Return the names that leave a stage of the layers of ``part`` beside its output."""
        return self.carried[part.stop] if part.stop < len(self.names) else ()

    def split_inputs(self, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Part a batch's inputs into the first layer's positional arguments and the named inputs of all layers.

        Named inputs come from a dict: the inputs themselves, or the last entry of a tuple. Names that no layer declares stay
        with the first layer: one alone as it is, several as a dict.

        Raises:
            DataError: If a declared name is not in the batch.
        """
        arguments = inputs if isinstance(inputs, tuple) else tuple(inputs) if isinstance(inputs, list) else (inputs,)
        if not self.batch_inputs:
            return arguments, {}
        entries = arguments[-1] if arguments and isinstance(arguments[-1], dict) else {}
        for name, layer in self.batch_inputs.items():
            if name not in entries:
                has = f"names {sorted(map(str, entries))}" if entries else "has no names: its inputs are no dict and end with none"
                raise DataError(f"layer {layer!r} takes {name!r} from the batch, but the batch {has}; pass inputs as a dict with {name!r}")
        named = {name: entries[name] for name in self.batch_inputs}
        rest = {name: value for name, value in entries.items() if name not in named}
        positional = arguments[:-1]
        if len(rest) == 1:
            positional += tuple(rest.values())
        elif rest:
            positional += (rest,)
        return positional, named


def _resolve_ties(layers: Sequence[Layer]) -> tuple[Tie, ...]:
    index_of = {layer.name: i for i, layer in enumerate(layers)}
    target: dict[tuple[int, str], tuple[int, str]] = {}
    for index, layer in enumerate(layers):
        for parameter, other in layer.tie.items():
            # A layer's name may hold dots itself: the longest name that fits is meant.
            owner = max((n for n in index_of if other.startswith(f"{n}.")), key=len, default=None)
            if owner is None:
                raise ConfigError(
                    f"layer {layer.name!r} ties {layer.name}.{parameter} to {other!r}, but no layer has that name; "
                    f"write '<layer>.<parameter>' with one of {', '.join(list(index_of)[:8])}"
                )
            target[index, parameter] = index_of[owner], other[len(owner) + 1 :]
    ties = []
    for start in target:
        end = target[start]
        seen = {start}
        while end in target and end not in seen:
            seen.add(end)
            end = target[end]
        if end in seen:
            name = f"{layers[start[0]].name}.{start[1]}"
            raise ConfigError(f"the ties of {name} and {layers[end[0]].name}.{end[1]} lead in a circle; remove one of them")
        ties.append(Tie(*start, *end))
    return tuple(ties)
