"""From a job file to what a trainer needs: layers, loss, optimizer and data. The model is ours, or a user's own function."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pptoolkit.config import ModelConfig, RunConfig
from pptoolkit.data import TokenDataset, load_tokens
from pptoolkit.engine.layers import Layer, as_layers
from pptoolkit.engine.step_losses import LossFunction
from pptoolkit.errors import ConfigError, PlanError, PPToolkitError, counted
from pptoolkit.models import GPTConfig, gpt_layers, loss_without, next_token_loss
from pptoolkit.plan import Plan, equal_layer_cuts, fingerprint_layers
from pptoolkit.schedule import check_trains


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A model with its loss, data and optimizer, ready to be cut. A ``custom`` model's function returns one.

    Args:
        layers: ``nn.Sequential`` or a list of :class:`pptoolkit.Layer`.
        loss: ``loss(output, target)``: the mean over the samples of a micro-batch.
        dataset: A function that returns the data set, not the data set itself: ``lambda: TensorDataset(x, y)``. Called once on each
            rank: ``len(data)`` samples of (input, target), the same everywhere.
        optimizer: Makes the optimizer from a rank's parameters; None: AdamW with the job file's learning rate.

    Raises:
        ConfigError: If ``dataset``, ``loss`` or ``optimizer`` is no function, or ``layers`` is no list of layers.
    """

    layers: nn.Sequential | Sequence[Layer | nn.Module]
    loss: LossFunction
    dataset: Callable[[], Any]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None

    def __post_init__(self) -> None:
        as_layers(self.layers)
        _require_function("loss", self.loss, "write a function of (output, target), e.g. nn.functional.mse_loss or nn.MSELoss()")
        _require_function("dataset", self.dataset, "it must be a function that returns the data set; write dataset=lambda: ...")
        if self.optimizer is not None:
            _require_function(
                "optimizer", self.optimizer, "write optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), or leave it out"
            )

    @property
    def fingerprint(self) -> str:
        return fingerprint_layers([layer.signature() for layer in as_layers(self.layers)])

    @property
    def layer_names(self) -> list[str]:
        return [layer.name for layer in as_layers(self.layers)]

    def make_optimizer(self, config: RunConfig) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
        return self.optimizer or partial(torch.optim.AdamW, lr=config.training.learning_rate, weight_decay=config.training.weight_decay)


def _require_function(field: str, value: object, remedy: str) -> None:
    if isinstance(value, type) and issubclass(value, nn.Module):
        raise ConfigError(f"Job.{field} is the class {value.__name__}, not one of it; {remedy}")
    if not callable(value):
        raise ConfigError(f"Job.{field} is a {type(value).__name__}, not a function; {remedy}")


def make_job(config: RunConfig) -> Job:
    """Return the job that a config describes.

    Raises:
        ConfigError: If a custom model's function cannot be found, or returns no :class:`Job`.
    """
    if config.model.kind == "custom":
        return _custom_job(config.model)
    model = config.model
    gpt = GPTConfig(
        vocabulary=config.data.vocabulary,
        width=model.width,
        depth=model.depth,
        heads=model.heads,
        sequence=model.sequence,
        dropout=model.dropout,
    )
    ignored = config.training.ignore_token
    loss = next_token_loss if ignored is None else loss_without(ignored)
    layers = gpt_layers(gpt, dtype=getattr(torch, config.training.dtype))
    return Job(layers=layers, loss=loss, dataset=partial(_corpus, config))


def make_plan(job: Job, config: RunConfig, *, plan: Plan | None, ranks: int | None) -> Plan:
    """Return the plan to run: the one given, or the config's, checked against the model and the batch.

    Args:
        job: The job.
        config: The job file.
        plan: A plan from a file; it wins over the config's.
        ranks: Number of ranks asked for; None: as many as the plan has stages.

    Raises:
        PlanError: If plan, model and ranks do not fit, or the schedule trains nothing.
        ScheduleError: If the schedule is unknown.
        ConfigError: If the micro-batches do not divide the batch.
    """
    if ranks is not None and ranks < 1:
        raise ConfigError(f"--nproc {ranks} starts no process; use 1 or more")
    layers = len(job.layer_names)
    if plan is None:
        wanted = config.plan
        plan = Plan(
            schedule=wanted.schedule, micro_batches=wanted.micro_batches, replicas=wanted.replicas, recompute=tuple(wanted.recompute)
        )
        length = plan.pipeline_ranks(ranks) if ranks is not None else 1
        if wanted.cuts is None and length > layers:
            each = f" in each of {plan.replicas} replicas" if plan.replicas > 1 else ""
            raise PlanError(
                f"--nproc {ranks} makes {length} stages{each}, but the model has {counted(layers, 'layer')}; "
                f"use --nproc {layers * plan.replicas}, or fewer"
            )
        plan = plan.evolve(cuts=tuple(wanted.cuts) if wanted.cuts is not None else equal_layer_cuts(layers, length))
    check_trains(plan.schedule)
    plan.check(layers, fingerprint=job.fingerprint)
    _check_ranks(plan, ranks)
    _check_batch(plan, config)
    return plan.evolve(fingerprint=job.fingerprint, prediction=plan.prediction)


def _check_ranks(plan: Plan, ranks: int | None) -> None:
    if ranks is None:
        return
    length = plan.pipeline_ranks(ranks)
    if plan.schedule in ("gpipe", "1f1b") and length != plan.stages:
        copies = f" and replicas={plan.replicas}" if plan.replicas > 1 else ""
        raise PlanError(
            f"cuts={list(plan.cuts)} make {counted(plan.stages, 'stage')}, but {counted(ranks, 'rank')} "
            f"{'was' if ranks == 1 else 'were'} asked for{copies}, and {plan.schedule} "
            f"runs one stage a rank; use --nproc {plan.stages * plan.replicas}, or {counted(length - 1, 'cut point')}"
        )


def _check_batch(plan: Plan, config: RunConfig) -> None:
    batch = config.training.batch_size
    pieces = plan.micro_batches * plan.replicas * config.training.accumulation
    if batch % pieces:
        best = max(1, batch // pieces) * pieces
        where = [f"{plan.replicas} replicas"] if plan.replicas > 1 else []
        where += [f"{config.training.accumulation} accumulated passes"] if config.training.accumulation > 1 else []
        over = f" ({' and '.join(where)} of {plan.micro_batches})" if where else ""
        raise ConfigError(
            f"training.batch_size={batch} cannot be cut into {pieces} equal micro-batches{over}; "
            f"use batch_size={best}, or micro_batches that divide {batch}"
        )


def _corpus(config: RunConfig) -> TokenDataset:
    """Return the tokenised corpus; the first call on a machine trains the vocabulary, later ones read the cache."""
    data = config.data
    corpus = load_tokens(data.path or None, vocabulary=data.vocabulary, max_bytes=data.max_bytes)
    return TokenDataset(corpus.tokens, config.model.sequence, source=corpus.source)


def _custom_job(model: ModelConfig) -> Job:
    where, _, name = model.factory.partition(":")
    if not where or not name:
        raise ConfigError(f"model.factory={model.factory!r} names no function; write 'file.py:function' or 'package.module:function'")
    function = getattr(_load(where), name, None)
    if function is None:
        raise ConfigError(f"model.factory={model.factory!r}: there is no {name!r} in {where}; check the spelling")
    try:
        job = function(**model.arguments)
    except ConfigError as error:
        raise ConfigError(f"model.factory={model.factory!r}: {error}") from error
    except PPToolkitError:
        raise
    except Exception as error:
        raise ConfigError(
            f"model.factory={model.factory!r} with arguments {model.arguments} failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(job, Job):
        raise ConfigError(f"model.factory={model.factory!r} returned {type(job).__name__}; it must return a pptoolkit.Job")
    return job


def _load(where: str) -> Any:
    """Import a module by name, or a file by path."""
    if not where.endswith(".py"):
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"model.factory: cannot import {where}: {error}; name a file ('my_model.py:job') or an installed module"
            ) from error
    path = Path(where).resolve()
    if not path.is_file():
        raise ConfigError(f"model.factory: there is no file {path}; write its path relative to where you start pptoolkit")
    name = f"pptoolkit_job_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # classes that are looked up by module name, e.g. by dataclasses, must find it
    spec.loader.exec_module(module)
    return module
