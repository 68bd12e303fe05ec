"""From a job file to what a trainer needs: layers, loss, optimizer and data."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from pptoolkit.config import RunConfig
from pptoolkit.data import TokenDataset, load_tokens
from pptoolkit.engine.layers import Layer
from pptoolkit.engine.runtime import LossFunction
from pptoolkit.errors import ConfigError, PlanError
from pptoolkit.models import GPTConfig, gpt_layers, loss_without, next_token_loss
from pptoolkit.plan import Plan, equal_layer_cuts, fingerprint_layers


@dataclass(frozen=True, slots=True)
class Job:
    """A model and its loss, ready to be cut; nothing is built yet."""

    config: RunConfig
    layers: list[Layer]
    loss: LossFunction

    @property
    def fingerprint(self) -> str:
        return fingerprint_layers([layer.signature() for layer in self.layers])

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        training = self.config.training
        return torch.optim.AdamW(parameters, lr=training.learning_rate, weight_decay=training.weight_decay)

    def dataset(self) -> TokenDataset:
        """Return the tokenised corpus; the first call on a machine trains the vocabulary, later ones read the cache.

        Raises:
            DataError: If there is no text, or less than one batch of it.
        """
        data, training = self.config.data, self.config.training
        corpus = load_tokens(data.path or None, vocabulary=data.vocabulary, max_bytes=data.max_bytes)
        dataset = TokenDataset(corpus.tokens, self.config.model.sequence, source=corpus.source)
        dataset.require(training.batch_size)
        return dataset


def make_job(config: RunConfig) -> Job:
    """Return the job that a config describes."""
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
    return Job(config, gpt_layers(gpt, dtype=getattr(torch, config.training.dtype)), loss)


def make_plan(job: Job, *, plan: Plan | None, ranks: int | None) -> Plan:
    """Return the plan to run: the one given, or the config's, checked against the model and the batch.

    Args:
        job: The job.
        plan: A plan from a file; it wins over the config's.
        ranks: Number of ranks asked for; None: as many as the plan has stages.

    Raises:
        PlanError: If plan, model and ranks do not fit.
        ConfigError: If the micro-batches do not divide the batch.
    """
    if ranks is not None and ranks < 1:
        raise ConfigError(f"--nproc {ranks} starts no process; use 1 or more")
    layers = len(job.layers)
    if plan is None:
        wanted = job.config.plan
        plan = Plan(
            schedule=wanted.schedule, micro_batches=wanted.micro_batches, replicas=wanted.replicas, recompute=tuple(wanted.recompute)
        )
        length = plan.pipeline_ranks(ranks) if ranks is not None else 1
        plan = plan.evolve(cuts=tuple(wanted.cuts) if wanted.cuts is not None else equal_layer_cuts(layers, length))
    plan.check(layers, fingerprint=job.fingerprint)
    _check_ranks(plan, ranks)
    _check_batch(plan, job.config)
    return plan.evolve(fingerprint=job.fingerprint, prediction=plan.prediction)


def _check_ranks(plan: Plan, ranks: int | None) -> None:
    if ranks is None:
        return
    length = plan.pipeline_ranks(ranks)
    if plan.schedule in ("gpipe", "1f1b") and length != plan.stages:
        copies = f" and replicas={plan.replicas}" if plan.replicas > 1 else ""
        raise PlanError(
            f"cuts={list(plan.cuts)} make {plan.stages} stages, but {ranks} ranks were asked for{copies}, and {plan.schedule} "
            f"runs one stage a rank; use --nproc {plan.stages * plan.replicas}, or {length - 1} cut points"
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
