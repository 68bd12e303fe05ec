"""From gradients to the next parameters: unscale, clip, learning rate, optimizer; or skip, and then on every rank."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from pptoolkit.engine.optimisation import Optimisation, OptimizerFactory, fits
from pptoolkit.engine.precision import DynamicScale
from pptoolkit.engine.replicas import Replicas
from pptoolkit.errors import TrainingError

_EPSILON = 1e-6  # as in torch.nn.utils.clip_grads_with_norm_


class Update:
    """Owns this rank's optimizer, its learning rate and the factor of the loss.

    Args:
        parameters: This rank's parameters by global name.
        optimizer: Makes the optimizer.
        settings: See :class:`Optimisation`.
        replicas: Where the gradients are.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], optimizer: OptimizerFactory, settings: Optimisation, replicas: Replicas
    ) -> None:
        self._settings, self._replicas, self._parameters = settings, replicas, parameters
        groups = parameter_groups(parameters, settings)
        self.optimizer = optimizer(groups) if groups else None
        self._base_rates = [group["lr"] for group in self.optimizer.param_groups] if self.optimizer is not None else []
        schedules = self.optimizer is not None and settings.scheduler is not None
        self.scheduler = settings.scheduler(self.optimizer) if schedules else None  # type: ignore[misc, arg-type]
        self.scale = DynamicScale(settings.loss_scale)
        self.skipped_steps = 0

    @property
    def needs_norm(self) -> bool:
        return self._settings.clip_norm is not None or self.scale.active

    @property
    def learning_rate(self) -> float | None:
        """Of the first parameter group; None on a rank that has no parameters and no groups."""
        return float(self.optimizer.param_groups[0]["lr"]) if self.optimizer is not None else None

    def squared_norm(self) -> float:
        """Return the sum of squares that this rank adds to the global one; 0 where nobody asks for it."""
        gradients = self._replicas.counted_gradients() if self.needs_norm else []
        return float(torch.nn.utils.get_total_norm(gradients)) ** 2 if gradients else 0.0

    def set_learning_rate(self, step: int) -> None:
        """Set the rate of ``step`` from the user's factor: a pure function of the step, so nothing has to be remembered."""
        if self._settings.learning_rate is None or self.optimizer is None:
            return
        factor = self._settings.learning_rate(step)
        for group, base in zip(self.optimizer.param_groups, self._base_rates, strict=True):
            group["lr"] = base * factor

    def apply(self, summed_norm: float, *, step: int) -> float | None:
        """Take the step, or skip it where the gradients overflowed; the same on every rank.

        Args:
            summed_norm: Global norm of the gradients as they are, the factor of the loss included.
            step: Step index.

        Returns:
            The global norm before clipping; None where it was not asked for.

        Raises:
            TrainingError: If a gradient is not finite, and no loss scaling can help.
        """
        norm = summed_norm / self.scale.factor if self.needs_norm else None
        if norm is not None and not math.isfinite(norm):
            self._refuse_or_skip(norm, step)
        else:
            self._shrink(norm)
            if self.optimizer is not None:
                self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()
            self.scale.went_well()
        for parameter in self._parameters.values():
            parameter.grad = None
        return norm

    def named_state(self) -> dict[str, dict[str, Any]]:
        """Return the optimizer's state of each parameter by global name; none of one that it has not updated yet."""
        state = self.optimizer.state if self.optimizer is not None else {}
        return {name: state[p] for name, p in self._parameters.items() if p in state}

    def named_options(self) -> dict[str, dict[str, Any]]:
        """Return the options (learning rate and so on) of each parameter's group, by the parameter's global name."""
        groups = self.optimizer.param_groups if self.optimizer is not None else []
        options = {id(p): {k: v for k, v in group.items() if k != "params"} for group in groups for p in group["params"]}
        return {name: options[id(p)] for name, p in self._parameters.items() if id(p) in options}

    def go_on(
        self, before: "Update", *, state: Mapping[str, dict[str, Any]], options: Mapping[str, dict[str, Any]], scheduler: Any
    ) -> None:
        """Go on where another update stopped.

        Args:
            before: This rank's update until now.
            state: As :meth:`named_state`, for every parameter that had one, wherever it was.
            options: As :meth:`named_options`, likewise.
            scheduler: The ``state_dict`` of the learning-rate scheduler; None without one.
        """
        self.scale, self.skipped_steps = before.scale, before.skipped_steps
        if self.optimizer is None:
            return
        if self.scheduler is not None and scheduler is not None:
            self.scheduler.load_state_dict(scheduler)
        names = {id(p): name for name, p in self._parameters.items()}
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                name = names[id(parameter)]
                if name in state:
                    self.optimizer.state[parameter] = state[name]
            known = [options[names[id(p)]] for p in group["params"] if names[id(p)] in options]
            group.update(known[0] if known else {})

    def _shrink(self, norm: float | None) -> None:
        clip = self._settings.clip_norm
        factor = 1 / self.scale.factor
        if clip is not None and norm is not None:
            factor *= min(1.0, clip / (norm + _EPSILON))
        gradients = self._replicas.own_gradients()
        if factor != 1.0 and gradients:
            torch._foreach_mul_(gradients, factor)

    def _refuse_or_skip(self, norm: float, step: int) -> None:
        if self.scale.active:
            self.skipped_steps += 1
            self.scale.overflowed()
            return
        bad = [name for name, p in self._parameters.items() if p.grad is not None and not bool(torch.isfinite(p.grad).all())]
        here = f"; on this rank: {', '.join(bad[:4])}" if bad else ""
        raise TrainingError(
            f"the gradients of step {step} are not finite (norm {norm}){here}; "
            "use a smaller learning rate, or look for a layer that divides by 0"
        )


def parameter_groups(parameters: Mapping[str, nn.Parameter], settings: Optimisation) -> list[Any]:
    """Return what the optimizer is made from: parameters, or groups with options.

    With groups, every rank has all of them, empty ones too, so that learning rates mean the same everywhere.
    """
    training = {name: p for name, p in parameters.items() if p.requires_grad}
    if not settings.groups:
        return list(training.values())
    members: list[list[nn.Parameter]] = [[] for _ in range(len(settings.groups) + 1)]
    for name, parameter in training.items():
        chosen = next((i for i, group in enumerate(settings.groups) if fits(name, group.patterns)), len(settings.groups))
        members[chosen].append(parameter)
    options: list[Mapping[str, Any]] = [*(group.options for group in settings.groups), {}]
    return [{"params": chosen, **extra} for chosen, extra in zip(members, options, strict=True)]
