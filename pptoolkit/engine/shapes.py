"""What crosses each border: inferred once per distinct input shape, without running a layer for real, and cached."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call

from pptoolkit.engine import torch_private
from pptoolkit.errors import StageError, TrainingError


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


@dataclass(frozen=True, slots=True)
class StageShapes:
    """Inputs and outputs of one stage for one distinct input shape; bytes that each of its layers hands on and keeps."""

    inputs: Specs
    outputs: Specs
    layer_output_bytes: tuple[int, ...]
    layer_saved_bytes: tuple[int, ...]  # kept for the backward pass, parameters aside


def infer_stage(module: nn.Module, inputs: Specs, *, rank: int, stage: int, device: torch.device) -> StageShapes:
    """Return what ``module`` gives for ``inputs``, running it on shapes alone.

    Parameters, buffers and random state stay as they are.

    Raises:
        StageError: If a layer fails on these shapes.
        TrainingError: If the stage returns something other than tensors.
    """
    counter = _LayerBytes()
    mode = torch_private.fake_mode()
    hooks = [layer.register_forward_hook(counter.note_output) for layer in module.layers]  # type: ignore[union-attr]
    try:
        with mode, torch.autograd.graph.saved_tensors_hooks(counter.note_saved, lambda kept: kept):
            state = {name: mode.from_tensor(t) for name, t in (*module.named_parameters(), *module.named_buffers())}
            counter.ignore(state.values())
            examples = tuple(torch.empty(spec.shape, dtype=spec.dtype, device=device).requires_grad_(spec.requires_grad) for spec in inputs)
            output = functional_call(module, state, examples)
    except Exception as error:
        raise StageError(rank=rank, stage=stage, micro_batch=0, step=0, doing="shape inference", cause=error) from error
    finally:
        for hook in hooks:
            hook.remove()
    outputs = output if isinstance(output, tuple) else (output,)
    for position, value in enumerate(outputs):
        if not isinstance(value, torch.Tensor):
            raise TrainingError(
                f"stage {stage} on rank {rank} returned {type(value).__name__} as output {position}; "
                "what crosses a border must be a tensor or a tuple of tensors: return those, or move the cut"
            )
    return StageShapes(inputs, tuple(TensorSpec.of(t) for t in outputs), tuple(counter.output), tuple(counter.saved))


def send_specs(specs: Specs, *, to_rank: int) -> None:
    """Hand the inferred outputs of a stage to the rank of the next one."""
    rows = [[list(s.shape), str(s.dtype).removeprefix("torch."), s.requires_grad] for s in specs]
    dist.send_object_list([rows], dst=to_rank)


def receive_specs(*, from_rank: int) -> Specs:
    """Take from the rank of the previous stage what :func:`send_specs` hands over."""
    box: list[Any] = [None]
    dist.recv_object_list(box, src=from_rank)
    return tuple(TensorSpec(tuple(shape), getattr(torch, dtype), grad) for shape, dtype, grad in box[0])


class _LayerBytes:
    """Counts, layer by layer, the bytes of outputs and of what autograd keeps (each storage once, parameters aside)."""

    def __init__(self) -> None:
        self.output: list[int] = []
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
        tensors = output if isinstance(output, tuple) else (output,)
        self.output.append(sum(TensorSpec.of(t).bytes for t in tensors if isinstance(t, torch.Tensor)))
        self.saved.append(self._running)
        self._running = 0
