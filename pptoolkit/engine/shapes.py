"""What one stage hands on for one distinct input shape: found without running a layer for real, and without a trace."""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from pptoolkit.engine import micro_batch, torch_private
from pptoolkit.engine.border import Border, BorderTypeError, TensorSpec, tensors_in
from pptoolkit.engine.stage_module import StageModule
from pptoolkit.errors import TrainingError

_NOTHING = Border(None, (), (), ())


@dataclass(frozen=True, slots=True)
class StageShapes:
    """Inputs and outputs of one stage for one distinct input shape; bytes that each of its layers hands on and keeps.

    The first stage has no border before it, the last stage none after it.
    """

    inputs: Border
    outputs: Border
    layer_output_bytes: tuple[int, ...]
    layer_saved_bytes: tuple[int, ...]  # kept for the backward pass, parameters aside


def infer_stage(
    module: StageModule, before: Border | None, arguments: tuple[Any, ...], named: dict[str, Any], *, last: bool, device: torch.device
) -> StageShapes:
    """Return what ``module`` gives, running it on shapes alone.

    Parameters, buffers, random state and what layers keep as attributes stay as they are. A layer that asks for numbers,
    which shapes do not have, is run once for real, on zeros, and then everything is put back.

    Args:
        module: The layers of the stage.
        before: The border before the stage; None for the first stage.
        arguments: What the first stage is given; only shapes are read.
        named: What the stage's layers take from the batch; only shapes are read.
        last: Whether the stage is the last: what it returns goes to the loss and may be anything.
        device: Where the stage lives.

    Raises:
        TrainingError: If something other than tensors, None and tuples, lists and dicts of them would cross the border.
        Exception: Whatever a layer raises.
    """
    try:
        with module.seeder.untouched(), torch_private.fake_mode() as mode:
            return _run(module, before, arguments, named, last=last, device=device, state=lambda t: mode.from_tensor(t))
    except TrainingError:
        raise
    except Exception as reason:
        try:
            with module.seeder.untouched():
                found = _run(module, before, arguments, named, last=last, device=device, state=_apart)
        except RuntimeError as error:
            if "leaf Variable" not in str(error):
                raise
            raise RuntimeError(
                f"{error} The first layers of a stage change its input in place, which a cut does not allow: use inplace=False"
            ) from error
        warnings.warn(
            f"the layers {module.names[0]!r} to {module.names[-1]!r} cannot be run on shapes alone ({type(reason).__name__}: "
            f"{str(reason).strip().splitlines()[0][:200] if str(reason).strip() else 'no message'}); they were run once on zeros instead",
            stacklevel=2,
        )
        return found


def _run(
    module: StageModule,
    before: Border | None,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    *,
    last: bool,
    device: torch.device,
    state: Any,
) -> StageShapes:
    def example(spec: TensorSpec) -> torch.Tensor:
        return torch.zeros(spec.shape, dtype=spec.dtype, device=device).requires_grad_(spec.requires_grad)

    counter = _LayerBytes()
    values = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        values[name] = state(tensor)
        if isinstance(tensor, nn.Parameter):
            values[name].requires_grad_(tensor.requires_grad)
    counter.ignore(values.values())
    if before is None:
        skips: dict[str, Any] = {}
        arguments = micro_batch.apply(arguments, lambda t: example(TensorSpec.of(t)))
    else:
        arguments, skips = before.unpack([example(spec) for spec in before.wire])
    extra = micro_batch.apply(named, lambda t: example(TensorSpec.of(t)))
    hooks = [layer.register_forward_hook(counter.note_output) for layer in module.layers]
    try:
        with (
            _attributes_kept(module),
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(counter.note_saved, lambda kept: kept),
        ):
            output = functional_call(module, values, arguments, {**skips, **extra})
    finally:
        for hook in hooks:
            hook.remove()
    after = _NOTHING if last else _border_after(module, output)
    sizes = _border_bytes(module, counter, before or _NOTHING, skips)
    return StageShapes(before or _NOTHING, after, sizes, tuple(counter.saved))


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """Return what a layer may change without changing the model: a copy of a buffer. Parameters are not written to."""
    return tensor.detach() if isinstance(tensor, nn.Parameter) else tensor.detach().clone()


def _border_after(module: StageModule, output: Any) -> Border:
    value, skips = output if module.hands_on else (output, {})
    try:
        return Border.of(value, skips)
    except BorderTypeError as error:
        raise TrainingError(
            f"layer {module.names[-1]!r} is the last one before a border and returned {error}; what crosses a border must be a tensor, "
            "None, or a tuple, list or dict of them: return that, or move the cut"
        ) from None


def _border_bytes(module: StageModule, counter: "_LayerBytes", before: Border, skips: dict[str, Any]) -> tuple[int, ...]:
    """Return what would cross a cut right after each layer: its output and the skip connections that go on."""
    provided = dict(skips)
    sizes = []
    for offset, output in enumerate(counter.outputs):
        if module.provides[offset]:
            provided[module.provides[offset]] = output
        crossing = {id(t): t for value in (output, *(provided[n] for n in module.carried[offset])) for t in tensors_in(value)}
        sizes.append(sum(TensorSpec.of(t).bytes for t in crossing.values()))
    return tuple(sizes)


class _LayerBytes:
    """Keeps, layer by layer, the output and the bytes that autograd keeps (each storage once, parameters aside)."""

    def __init__(self) -> None:
        self.outputs: list[Any] = []
        self.saved: list[int] = []
        self._running = 0
        self._known: set[int] = set()

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        self._known.update(t.untyped_storage()._cdata for t in tensors)

    def note_saved(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self._known.add(storage._cdata)
            self._running += storage.nbytes()
        return tensor

    def note_output(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        self.outputs.append(output)
        self.saved.append(self._running)
        self._running = 0


@contextmanager
def _attributes_kept(module: nn.Module) -> Iterator[None]:
    """Put back what layers keep as plain attributes, e.g. a table that is computed in the first forward and cached."""
    kept = [(part, {k: v.copy() if type(v) in (dict, list, set) else v for k, v in vars(part).items()}) for part in module.modules()]
    try:
        yield
    finally:
        for part, before in kept:
            now = vars(part)
            for name in now.keys() - before.keys():
                del now[name]
            for name, value in before.items():
                if type(value) in (dict, list, set) and type(now.get(name)) is type(value):
                    _refill(now[name], value)
                else:
                    now[name] = value


def _refill(container: Any, before: Any) -> None:
    """Give a dict, list or set its former entries; others may hold a reference to it."""
    container.clear()
    (container.extend if isinstance(before, list) else container.update)(before)
