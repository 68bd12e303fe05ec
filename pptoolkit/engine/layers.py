"""The layer list: named factories, built only on the rank that runs them, each under a seed of its own."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from pptoolkit.engine.randomness import layer_seed
from pptoolkit.errors import ConfigError


class Layer:
    """One unit of a model that is never split: a name and how to build it.

    Args:
        name: Global name, unique in the model; it decides the seeds and the names in checkpoints.
        factory: Called with the arguments on the rank that owns the layer; returns an ``nn.Module``.
        inputs: Names that the layer takes as keyword arguments, besides what the layer before returns: what an earlier
            layer ``provides``, or else an entry of the batch, cut along the micro-batches. Wherever the cuts fall.
        provides: Name under which later layers may take this layer's output: a skip connection.
        tie: Parameters of this layer that are those of another one: ``{"weight": "embed.weight"}``.

    A factory that itself takes an argument named ``inputs``, ``provides`` or ``tie`` gets it through ``functools.partial``.
    """

    __slots__ = ("args", "factory", "inputs", "kwargs", "name", "provides", "tie")

    def __init__(
        self,
        name: str,
        factory: Callable[..., nn.Module],
        *args: Any,
        inputs: str | Sequence[str] = (),
        provides: str = "",
        tie: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        if not name or not isinstance(name, str):
            raise ConfigError(f"layer name {name!r} is not a text; give every layer a name, e.g. 'block0'")
        self.name, self.factory, self.args, self.kwargs = name, factory, args, kwargs
        self.inputs = (inputs,) if isinstance(inputs, str) else tuple(inputs)
        self.provides, self.tie = provides, dict(tie or {})
        for entry in (*self.inputs, *((provides,) if provides else ())):
            if not isinstance(entry, str) or not entry.isidentifier():
                raise ConfigError(f"layer {name!r} names {entry!r} as an input or output; use the name of a keyword argument, e.g. 'mask'")

    def __repr__(self) -> str:
        return f"Layer({self.name!r}, {_kind(self.factory)})"

    def build(self, seed: int | None = None) -> nn.Module:
        """Build the module; with a ``seed``, its weights depend on nothing but the seed and the layer's name.

        Raises:
            ConfigError: If the factory does not return an ``nn.Module``.
        """
        if seed is None:
            module = self.factory(*self.args, **self.kwargs)
        else:
            # Built on the host, wherever it will run: the same seed gives the same weights on every device.
            with torch.random.fork_rng(devices=_devices_in_use()):
                torch.manual_seed(layer_seed(seed, self.name))
                module = self.factory(*self.args, **self.kwargs)
        if not isinstance(module, nn.Module):
            raise ConfigError(f"the factory of layer {self.name!r} returned {type(module).__name__}; it must return an nn.Module")
        return module

    def signature(self) -> str:
        """Return a text that changes when the layer's name, kind or arguments do; part of the plan's fingerprint."""
        kwargs = sorted(self.kwargs.items())
        text = f"{self.name}|{_kind(self.factory)}|{[_plain(a) for a in self.args]}|{[(k, _plain(v)) for k, v in kwargs]}"
        declared = (self.inputs, self.provides, sorted(self.tie.items()))
        return f"{text}|{declared}" if any(declared) else text


class _Built:
    """A factory that hands out a module which exists already: a layer of a user's ``nn.Sequential``."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        shapes = [(name, tuple(p.shape)) for name, p in module.named_parameters()]
        self.kind = f"{type(module).__qualname__}{shapes}"

    def __call__(self) -> nn.Module:
        return self.module


def as_layers(model: nn.Sequential | Iterable[Layer | nn.Module]) -> list[Layer]:
    """Return the layer list of ``model``.

    A list of :class:`Layer` is taken as it is. The modules of an ``nn.Sequential`` (or of a plain list) keep the weights
    they have, so every rank must have built them alike; the trainer checks that they are.

    Raises:
        ConfigError: If the list is empty, a name comes twice, or an entry is no layer.
    """
    if isinstance(model, nn.Sequential):
        layers = [Layer(name, _Built(module)) for name, module in model.named_children()]
    elif isinstance(model, nn.Module) or not isinstance(model, Iterable):
        raise ConfigError(f"{type(model).__name__} is no list of layers; pass an nn.Sequential or a list of pptoolkit.Layer")
    else:
        layers = [_as_layer(index, entry) for index, entry in enumerate(model)]
    if not layers:
        raise ConfigError("the model has no layers; pass at least one")
    seen: set[str] = set()
    for layer in layers:
        if layer.name in seen:
            raise ConfigError(f"two layers are named {layer.name!r}; names must be unique because seeds and checkpoints go by them")
        seen.add(layer.name)
    return layers


def built_modules(layers: Sequence[Layer]) -> list[nn.Module]:
    """Return the modules that existed before the engine: those whose weights the engine did not seed."""
    return [layer.factory.module for layer in layers if isinstance(layer.factory, _Built)]


def weights_digest(modules: Iterable[nn.Module]) -> int:
    """Return 63 bits that differ between two builds whose weights differ, to compare ranks with each other."""
    digest = hashlib.blake2b(digest_size=8)
    for module in modules:
        for name, tensor in module.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return int.from_bytes(digest.digest(), "big") >> 1


def _devices_in_use() -> list[int]:
    """Return the GPU whose random state seeding would change: this process's own. torch would take all of the machine's, and warn."""
    return [torch.cuda.current_device()] if torch.cuda.is_initialized() else []


def _as_layer(index: int, entry: Layer | nn.Module) -> Layer:
    if isinstance(entry, Layer):
        return entry
    if isinstance(entry, nn.Module):
        return Layer(str(index), _Built(entry))
    raise ConfigError(f"entry {index} of the layer list is {type(entry).__name__}; use pptoolkit.Layer(name, factory, ...) or an nn.Module")


def _kind(factory: Callable[..., nn.Module]) -> str:
    if isinstance(factory, _Built):
        return factory.kind
    return f"{getattr(factory, '__module__', '')}.{getattr(factory, '__qualname__', type(factory).__qualname__)}"


def _plain(value: object) -> str:
    """Write an argument without memory addresses, which change from process to process."""
    if isinstance(value, int | float | str | bool | tuple | list | dict | type(None)):
        return repr(value)
    return type(value).__qualname__
