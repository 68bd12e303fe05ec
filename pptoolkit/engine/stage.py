"""One stage on torch's ``PipelineStage``: receive buffers from a pool, shapes inferred per distinct input, no copies."""

from typing import Any

import torch

from pptoolkit.engine.buffers import BufferPool
from pptoolkit.engine.shapes import Specs, StageShapes
from pptoolkit.engine.stage_module import StageModule
from pptoolkit.engine.torch_private import PipelineStage

Tensors = tuple[torch.Tensor, ...]


class PooledStage(PipelineStage):
    """A pipeline stage whose receive buffers live only while their micro-batch does.

    torch's own allocates one buffer per micro-batch up front, of the first step's shape; here a micro-batch has the
    shape that :meth:`begin_step` says, and its buffers go back to the pool after its backward.
    """

    def __init__(self, module: StageModule, *, stage: int, stages: int, device: torch.device, group: Any = None) -> None:
        super().__init__(module, stage, stages, device, group=group)
        self.module = module
        self.pool = BufferPool(device)
        self._shapes: list[StageShapes] = []
        self._activations: dict[int, Tensors] = {}  # by micro-batch: what came from the previous stage
        self._gradients: dict[int, tuple[torch.Tensor | None, ...]] = {}  # what came from the next stage
        self._lent: dict[int, list[torch.Tensor]] = {}

    def begin_step(self, shapes: list[StageShapes], *, train: bool) -> None:
        """Say what each micro-batch of the coming step looks like."""
        self._shapes = shapes
        self.has_backward = train
        self.chunks = len(shapes)
        self.clear_runtime_states()
        # torch reads only its length, to tell inputs from keyword tensors.
        self._stage_meta.inputs = shapes[0].inputs  # type: ignore[assignment]

    def end_step(self) -> None:
        """Give every buffer back, also after a step that broke off or had no backward."""
        for micro_batch in list(self._lent):
            self.release(micro_batch)
        self._activations.clear()
        self._gradients.clear()
        self.clear_runtime_states()
        self.backward_state.clear()
        self.dw_runner.clear()
        self.bwd_cache.clear()

    # -- receiving -----------------------------------------------------------------------------------------------------

    def buffers_for_activation(self, micro_batch: int) -> list[torch.Tensor]:
        buffers = self._lend(micro_batch, self._shapes[micro_batch].inputs)
        self._activations[micro_batch] = tuple(buffers)
        return buffers

    def buffers_for_gradient(self, micro_batch: int) -> list[torch.Tensor]:
        specs = self._shapes[micro_batch].outputs
        buffers = self._lend(micro_batch, tuple(s for s in specs if s.requires_grad))
        rest = iter(buffers)
        self._gradients[micro_batch] = tuple(next(rest) if s.requires_grad else None for s in specs)
        return buffers

    def take_local_activation(self, micro_batch: int, output: Any) -> None:
        """Take the output of the stage before, which lives on this rank too."""
        values = output if isinstance(output, tuple) else (output,)
        self._activations[micro_batch] = tuple(v.detach() for v in values)

    def take_local_gradient(self, micro_batch: int, gradients: tuple[torch.Tensor | None, ...]) -> None:
        """Take the input gradients of the stage after, which lives on this rank too."""
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
        return sum(s.bytes for s in shapes.outputs if s.requires_grad) if gradient else sum(s.bytes for s in shapes.inputs)

    # -- sending -------------------------------------------------------------------------------------------------------

    def activation_to_send(self, micro_batch: int) -> list[torch.Tensor]:
        outputs, _ = self.fwd_cache[micro_batch]
        if not self.has_backward:
            del self.fwd_cache[micro_batch]
        return [t.detach().contiguous() for t in outputs]

    def gradient_to_send(self, micro_batch: int) -> list[torch.Tensor]:
        """Return the gradients that the previous stage expects; zeros where this micro-batch did not use an input."""
        gradients = self.bwd_cache.pop(micro_batch)
        return [
            torch.zeros(spec.shape, dtype=spec.dtype, device=self.device) if gradient is None else gradient.contiguous()
            for spec, gradient in zip(self._shapes[micro_batch].inputs, gradients, strict=True)
            if spec.requires_grad
        ]

    # -- what torch's forward_one_chunk and backward_one_chunk ask for ---------------------------------------------------

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> Tensors:
        # A fresh leaf on the buffer: gradients of an earlier micro-batch in the same memory cannot leak in.
        specs = self._shapes[fwd_chunk_id].inputs
        received = self._activations.pop(fwd_chunk_id)
        return tuple(t.detach().requires_grad_(s.requires_grad and self.has_backward) for t, s in zip(received, specs, strict=True))

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> tuple[torch.Tensor | None, ...]:
        return self._gradients.pop(bwd_chunk_id)
