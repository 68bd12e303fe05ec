"""One stage on torch's ``PipelineStage``: any nesting across its borders, receive buffers from a pool, a backward split of our own."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch.distributed.fsdp import FSDPModule

from pptoolkit.engine.backward import Gradients, SplitBackward
from pptoolkit.engine.border import Specs
from pptoolkit.engine.buffers import BufferPool
from pptoolkit.engine.shapes import StageShapes
from pptoolkit.engine.stage_module import StageModule
from pptoolkit.engine.torch_private import PipelineStage

_MaybeTensor = TypeVar("_MaybeTensor", torch.Tensor, torch.Tensor | None)


class PooledStage(PipelineStage):
    """A pipeline stage whose receive buffers live only while their micro-batch does.

    torch's own allocates one buffer per micro-batch up front, of the first step's shape; here a micro-batch has the
    shape that :meth:`begin_step` says, and its buffers go back to the pool after its backward.

    Args:
        module: The layers of the stage.
        stage: Its index.
        stages: Number of stages.
        device: Where it lives.
        splits: Whether a backward may run in two parts. Without, the whole of it runs where the input part would: for a
            stage that cannot run parts of its graph twice, such as one that recomputes its activations.
    """

    def __init__(
        self, module: StageModule, *, stage: int, stages: int, device: torch.device, group: Any = None, splits: bool = True
    ) -> None:
        super().__init__(module, stage, stages, device, group=group)
        self.module = module
        self.pool = BufferPool(device)
        self.splits = splits
        self._shapes: list[StageShapes] = []
        self._sharded = False
        self._weights: list[torch.Tensor] | None = None  # those that train; looked up where a step splits a backward
        self._activations: dict[int, list[torch.Tensor]] = {}  # by micro-batch: what came from the previous stage
        self._gradients: dict[int, Sequence[torch.Tensor | None]] = {}  # what came from the next stage
        self._weight_parts: dict[int, SplitBackward | None] = {}
        self._lent: dict[int, list[torch.Tensor]] = {}

    def begin_step(self, shapes: list[StageShapes], *, train: bool) -> None:
        """Say what each micro-batch of the coming step looks like."""
        self._shapes = shapes
        self.has_backward = train
        self.chunks = len(shapes)
        self._weights = None
        self._sharded = isinstance(self.module, FSDPModule)
        self.clear_runtime_states()

    def end_step(self) -> None:
        """Give every buffer back, also after a step that broke off or had no backward."""
        for micro_batch in list(self._lent):
            self.release(micro_batch)
        self.pool.end_step()
        self._activations.clear()
        self._gradients.clear()
        self._weight_parts.clear()
        self.clear_runtime_states()
        self.bwd_cache.clear()

    # -- receiving -----------------------------------------------------------------------------------------------------

    def buffers_for_activation(self, micro_batch: int) -> list[torch.Tensor]:
        buffers = self._lend(micro_batch, self._shapes[micro_batch].inputs.wire)
        self._activations[micro_batch] = buffers
        return buffers

    def buffers_for_gradient(self, micro_batch: int) -> list[torch.Tensor]:
        specs = self._shapes[micro_batch].outputs.wire
        buffers = self._lend(micro_batch, tuple(s for s in specs if s.requires_grad))
        rest = iter(buffers)
        self._gradients[micro_batch] = [next(rest) if s.requires_grad else None for s in specs]
        return buffers

    def take_local_activation(self, micro_batch: int, tensors: list[torch.Tensor]) -> None:
        """Take what the stage before hands on, where it lives on this rank too."""
        self._activations[micro_batch] = tensors

    def take_local_gradient(self, micro_batch: int, gradients: Gradients) -> None:
        """Take the input gradients of the stage after, where it lives on this rank too."""
        self._gradients[micro_batch] = gradients

    def release(self, micro_batch: int) -> None:
        """Give the buffers of ``micro_batch`` back: its backward, weight part included, is over."""
        for buffer in self._lent.pop(micro_batch, ()):
            self.pool.give_back(buffer)

    def _lend(self, micro_batch: int, specs: Specs) -> list[torch.Tensor]:
        buffers = [self.pool.lend(spec) for spec in specs]
        self._lent.setdefault(micro_batch, []).extend(buffers)
        return buffers

    def received_bytes(self, micro_batch: int, *, gradient: bool) -> int:
        """Return the bytes that one message of ``micro_batch`` carries to this stage."""
        shapes = self._shapes[micro_batch]
        return shapes.outputs.gradient_bytes if gradient else shapes.inputs.bytes

    def sent_bytes(self, micro_batch: int, *, gradient: bool) -> int:
        """Return the bytes that one message of ``micro_batch`` carries from this stage."""
        shapes = self._shapes[micro_batch]
        return shapes.inputs.gradient_bytes if gradient else shapes.outputs.bytes

    # -- handing on ----------------------------------------------------------------------------------------------------

    def activations(self, micro_batch: int) -> list[torch.Tensor]:
        """Return what the next stage gets, without its graph; where no backward follows, the micro-batch is over here."""
        outputs, _ = self.fwd_cache[micro_batch]
        tensors = self._own(micro_batch, [t.detach() for t in outputs])
        if not self.has_backward:
            del self.fwd_cache[micro_batch]
            self.release(micro_batch)
        return tensors

    def gradients(self, micro_batch: int) -> Gradients:
        """Return what the previous stage gets; None for a tensor that needs no gradient, or got none."""
        return self.bwd_cache.pop(micro_batch)

    def gradients_to_send(self, micro_batch: int) -> list[torch.Tensor]:
        """Return the gradients that the previous stage waits for; zeros where this micro-batch did not use an input."""
        return [
            torch.zeros(spec.shape, dtype=spec.dtype, device=self.device) if gradient is None else gradient
            for spec, gradient in zip(self._shapes[micro_batch].inputs.wire, self.gradients(micro_batch), strict=True)
            if spec.requires_grad
        ]

    def _own(self, micro_batch: int, tensors: Sequence[_MaybeTensor]) -> list[_MaybeTensor]:
        """Copy what came from another rank and goes on as it came: its buffer may be lent again before it is read."""
        lent = {buffer.untyped_storage().data_ptr() for buffer in self._lent.get(micro_batch, ())}
        if not lent:
            return list(tensors)
        return [t.clone() if t is not None and t.untyped_storage().data_ptr() in lent else t for t in tensors]

    # -- what the runtime asks of a stage of torch -----------------------------------------------------------------------

    def forward_one_chunk(
        self, fwd_chunk_id: int, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, save_forward_output: bool = True
    ) -> Any:
        """Run the layers on one micro-batch and return their output.

        Args:
            fwd_chunk_id: The micro-batch.
            args: Positional arguments, for the first stage alone.
            kwargs: What the stage's layers take from the batch by name.
            save_forward_output: Not used: nothing is merged afterwards.
        """
        shapes = self._shapes[fwd_chunk_id]
        leaves: list[torch.Tensor] = []
        skips: dict[str, Any] = {}
        if not self.is_first:
            # Fresh leaves on the buffers: gradients of an earlier micro-batch in the same memory cannot leak in.
            specs = shapes.inputs.wire
            received = self._activations.pop(fwd_chunk_id)
            leaves = [t.detach().requires_grad_(s.requires_grad and self.has_backward) for t, s in zip(received, specs, strict=True)]
            args, skips = shapes.inputs.unpack(leaves)
        output = self.forward_maybe_with_nosync(*args, **skips, **(kwargs or {}))  # type: ignore[no-untyped-call]
        outputs: list[torch.Tensor] = []
        if not self.is_last:
            value, handed_on = output if self.module.hands_on else (output, {})
            outputs = shapes.outputs.pack(value, handed_on)
        self.fwd_cache[fwd_chunk_id] = outputs, leaves
        return output

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: torch.Tensor | None = None,
        full_backward: bool = True,
        last_backward: bool = False,
        loss_gradient: torch.Tensor | None = None,
    ) -> None:
        """Run the backward of one micro-batch, or its input part.

        Args:
            bwd_chunk_id: The micro-batch.
            loss: Its loss, for the last stage alone.
            full_backward: False: leave the weights to :meth:`backward_weight_one_chunk`.
            last_backward: The stage's last one in this step: replicas are reduced after it.
            loss_gradient: Derivative of the batch's loss by this one; None: 1.
        """
        outputs, inputs = self.fwd_cache.pop(bwd_chunk_id)
        gradients: Sequence[torch.Tensor | None] = (loss_gradient,)
        if self.is_last:
            assert loss is not None
            outputs = [loss] if loss.requires_grad else []
        else:
            pairs = list(zip(outputs, self._gradients.pop(bwd_chunk_id), strict=True))
            pairs = [(t, g) for t, g in pairs if g is not None and t.requires_grad]
            outputs, gradients = [t for t, _ in pairs], [g for _, g in pairs]
        if full_backward or not self.splits:
            found = self._whole_backward(outputs, gradients, inputs, last_backward)
            if not full_backward:
                self._weight_parts[bwd_chunk_id] = None
        else:
            if self._weights is None:
                self._weights = [p for p in self.module.parameters() if p.requires_grad]
            split = SplitBackward(outputs, gradients[: len(outputs)], inputs, self._weights)
            found = split.input_part()
            self._weight_parts[bwd_chunk_id] = split
        self.bwd_cache[bwd_chunk_id] = tuple(self._own(bwd_chunk_id, found))

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """Run the weight part of a backward whose input part is over."""
        split = self._weight_parts.pop(bwd_chunk_id)
        if split is not None:
            split.weight_part()

    def backward_waits(self, micro_batch: int) -> bool:
        """Whether all of the backward of ``micro_batch`` was left to its weight part."""
        split = self._weight_parts.get(micro_batch)
        return split is not None and split.all_in_weight_part

    def _whole_backward(
        self, outputs: list[torch.Tensor], gradients: Sequence[torch.Tensor | None], inputs: list[torch.Tensor], last_backward: bool
    ) -> Gradients:
        if not outputs:  # nothing here, or before it, needs a gradient
            return (None,) * len(inputs)
        if self._sharded:  # torch keeps its reduction back until the last backward
            arguments = {"stage_output": outputs, "output_grads": list(gradients), "input_values": inputs}
            return self.backward_maybe_with_nosync("full", arguments, last_backward=last_backward)[0]
        torch.autograd.backward(outputs, gradients)
        found = tuple(leaf.grad for leaf in inputs)
        for leaf in inputs:
            leaf.grad = None  # what is sent, or handed on, is let go of as soon as that is over
        return found
