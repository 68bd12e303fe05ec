"""Everything of torch that is not public and that we stand on, in one place.

Tried on torch 2.13.0. ``check()`` says in one sentence what a newer torch has moved.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as _schedules
from torch.distributed.pipelining.schedules import _Action as TorchAction
from torch.distributed.pipelining.schedules import _ComputationType as ComputationType
from torch.distributed.pipelining.schedules import _PipelineContext as PipelineContext
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime as ScheduleRuntime

TRIED_ON = ("2.13.0",)

# What our subclasses override or set, and the runtime must still read.
_RUNTIME_NAMES = (
    "_initialize_stages",
    "_prepare_schedule_with_comms",
    "_step_microbatches",
    "register_custom_function",
)
_STAGE_NAMES = (
    "forward_one_chunk",
    "forward_maybe_with_nosync",
    "backward_one_chunk",
    "backward_maybe_with_nosync",
    "backward_weight_one_chunk",
    "clear_runtime_states",
)

_OWN_HOOK = -1  # handles of torch count from 0

__all__ = [
    "TRIED_ON",
    "ComputationType",
    "PipelineContext",
    "PipelineStage",
    "ScheduleRuntime",
    "TorchAction",
    "call_with_gradient",
    "check",
    "fake_mode",
    "profiler_listens",
    "quiet_runtime_log",
    "shapes_only",
]


def check() -> list[str]:
    """Return a sentence for each private name that this torch no longer has; an empty list means that all is well."""
    version = torch.__version__
    missing = [f"_PipelineScheduleRuntime.{name}" for name in _RUNTIME_NAMES if not hasattr(ScheduleRuntime, name)]
    missing += [f"PipelineStage.{name}" for name in _STAGE_NAMES if not hasattr(PipelineStage, name)]
    if not (hasattr(torch.Tensor, "_backward_hooks") and hasattr(torch.autograd.graph.Node, "_register_hook_dict")):
        missing.append("Tensor._backward_hooks with Node._register_hook_dict")
    return [f"torch {version} has no {name}; pptoolkit was tried on torch {', '.join(TRIED_ON)}: install that version" for name in missing]


def fake_mode() -> Any:
    """Return a mode in which layers run on shapes alone: nothing is computed, drawn or written."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    # It logs the trace of what fails on shapes; our own error, or the run on zeros that follows, says it better.
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    return FakeTensorMode(allow_non_fake_inputs=True)


def shapes_only() -> bool:
    """Return whether :func:`fake_mode` is on."""
    from torch._guards import detect_fake_mode

    return detect_fake_mode() is not None


def profiler_listens() -> bool:
    """Return whether torch's profiler records just now."""
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]


def call_with_gradient(tensor: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> None:
    """Do what ``tensor.register_hook(hook)`` does, at a tenth of its cost between layers: that one imports, and makes a handle."""
    if tensor._backward_hooks is None and tensor.grad_fn is not None:
        tensor._backward_hooks = OrderedDict({_OWN_HOOK: hook})  # as torch's own: a later hook wants a weak reference to it
        tensor.grad_fn._register_hook_dict(tensor)
    else:
        tensor.register_hook(hook)


def quiet_runtime_log() -> None:
    """Keep the runtime from printing its whole schedule when an action fails; our own error names the place."""
    _schedules.logger.setLevel("CRITICAL")
