"""The training loop: one step is data, the schedule, one agreement of all ranks, the optimizer."""

import atexit
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pptoolkit.data.order import batches
from pptoolkit.engine.clocks import ClockExchange, LinkProbe, probe_links
from pptoolkit.engine.layers import Layer, as_layers, built_modules, weights_digest
from pptoolkit.engine.loader import BatchSource
from pptoolkit.engine.memory import ResidentMemory
from pptoolkit.engine.pipeline import Pipeline
from pptoolkit.engine.process_group import World, join, leave
from pptoolkit.engine.runtime import LossFunction
from pptoolkit.engine.step_end import StepAgreement, StopRequest, agree
from pptoolkit.errors import ConfigError, PlanError
from pptoolkit.failure import RankFailure, Termination, write_failure
from pptoolkit.plan import Plan, equal_layer_cuts, fingerprint_layers
from pptoolkit.progress import TrainingProgress
from pptoolkit.run_setup import RunSetup
from pptoolkit.telemetry import Op, RunDirectory, RunStatus, StepSummary
from pptoolkit.telemetry.layout import RankLayout
from pptoolkit.telemetry.process_start import process_start_ns
from pptoolkit.telemetry.session import Telemetry
from pptoolkit.telemetry.settings import TelemetrySettings

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """How a training ended; the same on every rank."""

    steps: int  # done in this call
    loss: float  # of the last step
    stopped: bool  # by Ctrl-C, before the last step asked for
    run: Path


class Trainer:
    """Trains a layer list as a pipeline. Start it with ``torchrun``, or with ``python`` for one process.

    Args:
        layers: ``nn.Sequential`` or a list of :class:`pptoolkit.Layer`; the same on every rank.
        loss: ``loss(output, target)``: the mean over the samples of a micro-batch.
        optimizer: Makes the optimizer from this rank's parameters.
        plan: Cuts, schedule, micro-batches. Without one: equal layer counts, 1F1B, two micro-batches per rank.
        run: Directory for this run; when it is taken, a number is appended. An opened :class:`RunDirectory` is used as it is.
        seed: Decides weights, dropout and the order of samples.
        clip_norm: Largest norm of all gradients of all stages together.
        telemetry: What is recorded and where it is served.
        sample_layers_every: Time the layers of one micro-batch in every n-th step; 0: never (then no cuts can be suggested).
        progress: Show progress on rank 0.

    Raises:
        InputError: If plan, layers and number of ranks do not fit each other.
    """

    def __init__(
        self,
        layers: nn.Sequential | Sequence[Layer | nn.Module],
        *,
        loss: LossFunction,
        optimizer: OptimizerFactory,
        plan: Plan | None = None,
        run: str | Path | RunDirectory = "runs/run",
        seed: int = 0,
        clip_norm: float | None = None,
        telemetry: TelemetrySettings | None = None,
        sample_layers_every: int = 1,
        progress: bool = True,
        link_probe: LinkProbe | None = None,
    ) -> None:
        self.world: World = join()
        self.layers = as_layers(layers)
        self.plan = plan or _default_plan(len(self.layers), self.world.ranks)
        fingerprint = fingerprint_layers([layer.signature() for layer in self.layers])
        self.plan.check(len(self.layers), fingerprint=fingerprint)
        if self.plan.replicas != 1 or self.plan.recompute:
            raise PlanError("replicas and recompute are not offered by this release; remove both from the plan")
        self.plan = self.plan if self.plan.fingerprint else self.plan.evolve(fingerprint=fingerprint, prediction=self.plan.prediction)
        self.seed, self.clip_norm, self._progress = seed, clip_norm, progress
        self._sample_every = sample_layers_every
        self._setup = RunSetup(self.plan, layers=[layer.name for layer in self.layers], ranks=self.world.ranks, seed=seed)
        self.run = self._setup.open(run, rank=self.world.rank)
        self._memory = ResidentMemory()
        settings = (telemetry or TelemetrySettings()).reachable_at(self.world.address)
        self.telemetry = Telemetry.start(settings, self.run, RankLayout.from_info(self.run.read_info(), self.world.rank))
        self._clocks = ClockExchange(interval_s=settings.clocks_s)
        try:
            self._setup.share_endpoints(self.run, self.telemetry)
            _check_same_weights(self.layers)
            self.pipeline = Pipeline(
                self.layers,
                self.plan,
                loss=loss,
                seed=seed,
                recorder=self.telemetry.recorder,
                device=torch.device("cpu"),
                resident_bytes=self._memory.read if self.telemetry.recorder.enabled else lambda: 0,
            )
            parameters = [p for p in self.pipeline.parameters() if p.requires_grad]
            self.optimizer = optimizer(parameters) if parameters else None
            self._measure_links(link_probe or LinkProbe())
        except BaseException as error:
            self._fail(error)
            raise
        self.step = 0
        self._started = False  # the first step of the attempt is still to come
        self._status = RunStatus.RUNNING
        atexit.register(self.close)

    def fit(self, dataset: Any, *, batch_size: int, steps: int) -> FitResult:
        """Train until ``steps`` steps are done in all.

        Args:
            dataset: ``len(dataset)`` samples, ``dataset[i] -> (input, target)``, the same on every rank; a ``batch(indices)``
                method is used where there is one.
            batch_size: Samples per step, over all micro-batches.
            steps: Steps of the whole run.

        Raises:
            InputError: If the batch does not fit the data set or the micro-batches.
            StageError: If a layer fails on this rank.
            PeerLostError: If another rank is gone.
        """
        try:
            source = BatchSource(dataset, batch_size=batch_size, micro_batches=self.plan.micro_batches)
            if self._setup.keeper:
                self._setup.announce(self.run, steps=steps, batch_size=batch_size, tokens_per_sample=source.tokens_per_sample)
            with Termination(lambda: self.telemetry.close(RunStatus.FAILED)), StopRequest() as stop:
                return self._loop(source, steps, stop)
        except BaseException as error:
            self._fail(error)
            raise

    def evaluate(self, dataset: Any, *, batch_size: int, batches: int | None = None) -> float:
        """Return the mean loss over ``dataset``, the same on every rank; training is left as it was.

        Args:
            dataset: As in :meth:`fit`.
            batch_size: Samples per batch, at least one per micro-batch.
            batches: How many batches to take; None: all full ones.
        """
        source = BatchSource(dataset, batch_size=batch_size, micro_batches=self.plan.micro_batches)
        count = len(source) if batches is None else min(batches, len(source))
        total = 0.0
        with self.telemetry.recorder.span(Op.EVAL):
            for index in range(count):
                inputs, targets = source.batch(range(index * batch_size, (index + 1) * batch_size))
                total += self.pipeline.evaluate(inputs, targets, step=index)
            return agree(loss=total, squared_norm=0.0, stop=False, compute_s=0.0).loss / count

    def close(self) -> None:
        """End telemetry and, if we made it, the process group; called at exit where nobody does it before."""
        atexit.unregister(self.close)
        self.telemetry.close(self._status)
        leave(self.world)

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- one run -------------------------------------------------------------------------------------------------------

    def _loop(self, source: BatchSource, steps: int, stop: StopRequest) -> FitResult:
        recorder = self.telemetry.recorder
        order = batches(source.samples, source.batch_size, seed=self.seed, start_step=self.step, source=source.name)
        first, loss, stopped = self.step, float("nan"), False
        counts = self.pipeline.owns_last  # one rank of the pipeline counts the samples, so that sums over ranks are right
        if not self._started:
            self._started = True
            recorder.record(Op.STARTUP, -1, -1, -1, process_start_ns(), time.monotonic_ns())
        with TrainingProgress(steps, start=self.step, shown=self._progress and self.world.rank == 0) as progress:
            while self.step < steps and not stopped:
                recorder.begin_step(self.step)
                with recorder.span(Op.DATA):
                    inputs, targets = source.batch(next(order))
                agreed = self._one_step(inputs, targets, stop)
                loss, stopped = agreed.loss, agreed.stop
                self.pipeline.clock.resolve()
                step_s = recorder.end_step() / 1e9
                self.telemetry.step_done(
                    StepSummary(
                        step=self.step,
                        loss=loss,
                        samples=source.batch_size if counts else 0,
                        tokens=source.batch_size * source.tokens_per_sample if counts else 0,
                        gradient_norm=agreed.gradient_norm if self.clip_norm is not None else None,
                        learning_rate=self.optimizer.param_groups[0]["lr"] if self.optimizer is not None else None,
                    )
                )
                bubble = max(0.0, 1 - agreed.compute_s / (self.world.ranks * step_s))
                progress.step(loss=loss, step_time_s=step_s, samples=source.batch_size, bubble_ratio=bubble)
                if self.step == first:
                    self._share_layer_facts()
                self.step += 1
                if agreed.exchange_clocks:
                    self._add_clock()
        if self._clocks.needed:
            self._add_clock()  # so that drift is known up to the last step
        early = stopped and self.step < steps
        self._status = RunStatus.STOPPED if early else RunStatus.FINISHED
        self.telemetry.flush()
        if self._setup.keeper:
            self._setup.end(self.run, self._status, f"stopped by Ctrl-C after step {self.step} of {steps}" if early else "")
        return FitResult(steps=self.step - first, loss=loss, stopped=early, run=self.run.path)

    def _one_step(self, inputs: Any, targets: Any, stop: StopRequest) -> StepAgreement:
        recorder, pipeline = self.telemetry.recorder, self.pipeline
        sampled = self.step % self.plan.micro_batches if self._sample_every and self.step % self._sample_every == 0 else -1
        with recorder.span(Op.SCHEDULE):
            share = pipeline.train_step(inputs, targets, step=self.step, sampled=sampled)
        parameters = pipeline.parameters()
        gradients = [p.grad for p in pipeline.norm_parameters() if p.grad is not None]
        clip = self.clip_norm is not None
        squared = float(torch.nn.utils.get_total_norm(gradients)) ** 2 if clip and gradients else 0.0
        with recorder.span(Op.REDUCE):
            agreed = agree(
                loss=share,
                squared_norm=squared,
                stop=stop.asked,
                compute_s=pipeline.compute_s,
                exchange_clocks=recorder.enabled and self._clocks.due,
            )
        with recorder.span(Op.OPTIMIZER):
            if self.clip_norm is not None:
                torch.nn.utils.clip_grads_with_norm_(parameters, self.clip_norm, torch.tensor(agreed.gradient_norm))
            if self.optimizer is not None:
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
        return agreed

    def _measure_links(self, probe: LinkProbe) -> None:
        if not self.telemetry.recorder.enabled:
            return
        self._add_clock()
        for found in probe_links(self._setup.schedule.stage_to_rank, probe):
            end_ns = found.start_ns + found.one_way_ns
            self.telemetry.add_probe(stage=found.stage, peer=found.peer_stage, start_ns=found.start_ns, end_ns=end_ns, bytes=found.bytes)

    def _add_clock(self) -> None:
        clock = self._clocks.measure()
        self.telemetry.add_clock(clock.offset_ns, clock.uncertainty_ns, local_ns=clock.local_ns)

    def _share_layer_facts(self) -> None:
        """Gather what each rank knows of its layers, for run.json; once, after the shapes are known."""
        gathered: list[Any] = [None] * self.world.ranks
        dist.all_gather_object(gathered, [asdict(fact) for fact in self.pipeline.layer_facts()])
        if self._setup.keeper:
            self._setup.add_layer_facts(self.run, sorted((f for facts in gathered for f in facts), key=lambda f: f["index"]))

    def _fail(self, error: BaseException) -> None:
        failure = RankFailure.of(error, rank=self.world.rank)
        write_failure(self.run.path / "failures", failure)
        self._status = RunStatus.FAILED
        atexit.unregister(self.close)  # the other ranks may be gone: nothing may wait for them
        self._setup.fail(self.run, failure)
        self.telemetry.close(self._status)  # last: a collector that is waited for shall read how the run ended


def _default_plan(layers: int, ranks: int) -> Plan:
    return Plan(cuts=equal_layer_cuts(layers, ranks), schedule="1f1b", micro_batches=max(1, 2 * ranks))


def _check_same_weights(layers: Sequence[Layer]) -> None:
    """Refuse modules that were built differently on different ranks; those that the engine builds are seeded by name."""
    modules = built_modules(layers)
    if not modules or dist.get_world_size() == 1:
        return
    mine = torch.tensor([weights_digest(modules)])
    least, most = mine.clone(), mine.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    if not torch.equal(least, most):
        raise ConfigError(
            "the ranks built the model with different weights; call torch.manual_seed(...) before building it, "
            "or pass pptoolkit.Layer factories, which are seeded by name"
        )
