"""The training loop: one step is data, the schedule, one agreement of all ranks, the optimizer."""

import atexit
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from pptoolkit.data.order import batches
from pptoolkit.engine import micro_batch as mb
from pptoolkit.engine.assembly import assemble
from pptoolkit.engine.clocks import LinkProbe
from pptoolkit.engine.device import DeviceSetting
from pptoolkit.engine.evaluation import mean_loss
from pptoolkit.engine.garbage import long_lived_objects_spared
from pptoolkit.engine.layers import Layer, as_layers
from pptoolkit.engine.loader import BatchSource, BatchStream, open_source
from pptoolkit.engine.memory import memory_in_use
from pptoolkit.engine.mesh import Mesh
from pptoolkit.engine.optimisation import Optimisation, OptimizerFactory
from pptoolkit.engine.pipeline import Pipeline
from pptoolkit.engine.process_group import World, join, leave
from pptoolkit.engine.relocation import collect_what_was_left
from pptoolkit.engine.step_end import BatchAgreement, StopRequest
from pptoolkit.engine.step_losses import LossFunction
from pptoolkit.engine.survey import Survey
from pptoolkit.engine.telemetry_start import start_telemetry
from pptoolkit.engine.training_step import StepOutcome
from pptoolkit.engine.whole_batch import learn_whole_batch
from pptoolkit.failure import RankFailure, Termination, write_failure
from pptoolkit.plan import Plan, default_plan, fingerprint_layers
from pptoolkit.planner.rebalance import AutoRebalance
from pptoolkit.progress import TrainingProgress
from pptoolkit.rebalance import check_rebalance, make_rebalancing
from pptoolkit.run_setup import RunSetup
from pptoolkit.telemetry import Op, RunDirectory, RunStatus, StepSummary
from pptoolkit.telemetry.process_start import process_start_ns
from pptoolkit.telemetry.settings import TelemetrySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """How a training ended; the same on every rank."""

    steps: int  # done in this call
    loss: float  # of the last step
    stopped: bool  # by Ctrl-C, before the last step asked for
    run: Path
    message: str = ""  # why it ended before the last step asked for


class Trainer:
    """Trains a layer list as a pipeline. Start it with ``torchrun``, or with ``python`` for one process.

    Args:
        layers: ``nn.Sequential`` or a list of :class:`pptoolkit.Layer`; the same on every rank.
        loss: ``loss(output, target)``: the mean over the samples of a micro-batch; or a :class:`pptoolkit.WeightedLoss`.
        optimizer: Makes the optimizer from this rank's parameters, or from the groups of ``optimisation``.
        plan: Cuts, schedule, micro-batches, replicas. Without one: equal layer counts, 1F1B, two micro-batches per rank.
        run: Directory for this run; when it is taken, a number is appended. An opened :class:`RunDirectory` is used as it is.
        seed: Decides weights, dropout and the order of samples.
        optimisation: Clipping, accumulation, precision, learning rate, groups, frozen layers, recompute.
        telemetry: What is recorded and where it is served.
        sample_layers_every: Time the layers of one micro-batch in every n-th step; 0: never (then no cuts can be suggested).
        auto_rebalance: Cut anew between two steps where that pays; training goes on with the same losses. True: as
            :class:`pptoolkit.AutoRebalance` does by default. ``optimizer`` and ``scheduler`` are then called again for each re-cut.
        progress: Show progress on rank 0, and what ``device="auto"`` has become.
        device: Where the ranks compute. ``"cpu"``, the default because it is everywhere, gives the same numbers everywhere and is what
            this release has been run on; ``"cuda"``: a GPU for each rank; ``"auto"``: GPUs where every rank of each host can have one.

    Attributes:
        mesh: Which replica this rank works for: ``mesh.replica`` of ``mesh.replicas``.

    Raises:
        InputError: If plan, layers and number of ranks do not fit each other, or the device cannot be had.
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
        optimisation: Optimisation | None = None,
        telemetry: TelemetrySettings | None = None,
        sample_layers_every: int = 1,
        auto_rebalance: AutoRebalance | bool = False,
        progress: bool = True,
        link_probe: LinkProbe | None = None,
        device: DeviceSetting | str = DeviceSetting.CPU,
    ) -> None:
        self.world: World = join(device)
        if progress and self.world.rank == 0 and self.world.device_reason:
            print(f"  {self.world.device_reason}", flush=True)
        self.layers = as_layers(layers)
        self.plan = plan or default_plan(len(self.layers), self.world.ranks)
        fingerprint = fingerprint_layers([layer.signature() for layer in self.layers])
        self.plan.check(len(self.layers), fingerprint=fingerprint)
        self.plan = self.plan if self.plan.fingerprint else self.plan.evolve(fingerprint=fingerprint, prediction=self.plan.prediction)
        self.seed, self._progress, self._sample_every = seed, progress, sample_layers_every
        self.optimisation = optimisation or Optimisation()
        settings = (telemetry or TelemetrySettings()).reachable_at(self.world.address)
        if auto_rebalance:
            check_rebalance(
                self.optimisation, replicas=self.plan.replicas, telemetry=settings.enabled, sample_layers_every=sample_layers_every
            )
        self._setup = RunSetup(
            self.plan,
            layers=[layer.name for layer in self.layers],
            ranks=self.world.ranks,
            seed=seed,
            accumulation=self.optimisation.accumulation,
        )
        self.mesh = Mesh.of(self.plan.replicas, device_type=self.world.device.type)
        self.run = self._setup.open(run, rank=self.world.rank)
        self.telemetry = start_telemetry(settings, self.run, self.world)
        self._survey = Survey(self.telemetry, interval_s=settings.clocks_s)
        try:
            self._setup.share_endpoints(self.run, self.telemetry, device=self.world.device.type, gpus=self.world.gpus)
            build = partial(
                assemble,
                loss=loss,
                optimizer=optimizer,
                settings=self.optimisation,
                seed=seed,
                recorder=self.telemetry.recorder,
                device=self.world.device,
                mesh=self.mesh,
                resident_bytes=memory_in_use(self.world.device) if self.telemetry.recorder.enabled else lambda: 0,
            )
            self._training = build(self.layers, self.plan)
            self._rebalancing = make_rebalancing(
                auto_rebalance, run=self.run, setup=self._setup, telemetry=self.telemetry, layers=self.layers, build=build
            )
            stage_ranks = [self.mesh.ranks[rank] for rank in self._setup.schedule.stage_to_rank]
            self._survey.begin(stage_ranks, (link_probe or LinkProbe()) if self.world.device.type == "cpu" else None)
        except BaseException as error:
            self._fail(error)
            raise
        self.step = 0
        self._started = False  # the first step of the attempt is still to come
        self._status = RunStatus.RUNNING
        atexit.register(self.close)

    @property
    def pipeline(self) -> Pipeline:
        """This rank's stages; others after a re-cut."""
        return self._training.pipeline

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """This rank's optimizer; None on a rank without parameters to train. Another one after a re-cut."""
        return self._training.update.optimizer

    def fit(self, dataset: Any, *, batch_size: int | None = None, steps: int) -> FitResult:
        """Train until ``steps`` steps are done in all, or until an iterable ends on any rank.

        Args:
            dataset: ``len(dataset)`` samples, ``dataset[i] -> (input, target)``, the same on every rank; a ``batch(indices)``
                method is used where there is one. Or an iterable of (inputs, targets) batches, the same on all ranks of
                a replica, its own for each replica.
            batch_size: Samples per step, over all micro-batches, accumulated batches and replicas. Not with an iterable.
            steps: Steps of the whole run.

        Raises:
            InputError: If the batch does not fit the data set or the micro-batches.
            StageError: If a layer fails on this rank.
            PeerLostError: If another rank is gone.
        """
        try:
            source = open_source(
                dataset,
                batch_size=batch_size,
                micro_batches=self.plan.micro_batches * self.optimisation.accumulation,
                replica=self.mesh.replica,
                replicas=self.mesh.replicas,
            )
            if self._setup.keeper:
                self._setup.announce(self.run, steps=steps, batch_size=source.batch_size, tokens_per_sample=source.tokens_per_sample)
            with Termination(lambda: self.telemetry.close(RunStatus.FAILED)), StopRequest() as stop:
                return self._loop(source, steps, stop)
        except BaseException as error:
            self._fail(error)
            raise

    def evaluate(self, dataset: Any, *, batch_size: int, batches: int | None = None) -> float:
        """Return the mean loss over ``dataset``, the same on every rank; training is left as it was.

        Args:
            dataset: Samples by index, as in :meth:`fit`.
            batch_size: Samples per batch, over all replicas.
            batches: How many batches to take; None: all, the last one maybe smaller.
        """
        source = BatchSource(dataset, batch_size=batch_size, micro_batches=1, replica=self.mesh.replica, replicas=self.mesh.replicas)
        with self.telemetry.recorder.span(Op.EVAL):
            return mean_loss(self._training, source, batches=batches)

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

    def _loop(self, source: BatchSource | BatchStream, steps: int, stop: StopRequest) -> FitResult:
        recorder = self.telemetry.recorder
        parts, first, loss, stopped, ended = self._parts(source), self.step, float("nan"), False, ""
        fresh = False  # the first step under a plan
        if not self._started:
            self._started = True
            recorder.record(Op.STARTUP, -1, -1, -1, process_start_ns(), time.monotonic_ns())
        shown = self._progress and self.world.rank == 0
        with long_lived_objects_spared(), TrainingProgress(steps, start=self.step, shown=shown) as progress:
            while self.step < steps and not stopped:
                recorder.begin_step(self.step, first_use=fresh)
                fresh = False
                with recorder.span(Op.DATA):
                    batch = next(parts, None)
                least = self.plan.micro_batches * self.optimisation.accumulation
                agreed = learn_whole_batch(self._training, source, batch, step=self.step, least=least, recorder=recorder)
                if agreed.ended or batch is None:
                    ended = f"the data ended after step {self.step} of {steps}: a rank has no batch left, so all ranks stop"
                    break
                outcome = self._one_step(batch, agreed, lambda: stop.asked)
                loss, stopped = outcome.loss, outcome.stop
                self.pipeline.clock.resolve()
                step_s = recorder.end_step() / 1e9
                self._tell(source, batch, outcome)
                bubble = max(1 - outcome.compute_s / (self.world.ranks * step_s), 0.0)  # not a number stays so
                progress.step(loss=loss, step_time_s=step_s, samples=agreed.samples, bubble_ratio=bubble)
                if self.step == first:
                    self._setup.share_layer_facts(self.run, [asdict(fact) for fact in self.pipeline.layer_facts()])
                self.step += 1
                if outcome.exchange_clocks:
                    self._survey.read_clocks()
                if not stopped:
                    fresh = self._rebalance(steps, progress.say)
            if ended:
                progress.say(ended)
        self._survey.end()
        early = stopped and self.step < steps
        self._status = RunStatus.STOPPED if early else RunStatus.FINISHED
        message = f"stopped by Ctrl-C after step {self.step} of {steps}" if early else ended
        self.telemetry.flush()
        self._rebalancing.end(progress.say)
        if self._setup.keeper:
            self._setup.end(self.run, self._status, message)
        return FitResult(steps=self.step - first, loss=loss, stopped=early, run=self.run.path, message=message)

    def _rebalance(self, steps: int, say: Callable[[str], None]) -> bool:
        """Go on under another plan where that pays; return whether it came to that."""
        training = self._rebalancing.go_on(self._training, step=self.step, steps=steps, say=say)
        if training is self._training:
            return False
        self._training, self.plan = training, self._setup.plan
        collect_what_was_left()
        return True

    def _parts(self, source: BatchSource | BatchStream) -> Iterator[tuple[Any, Any]]:
        """Yield this replica's part of each batch; of a data set by index, for ever, in an order that seed and step decide."""
        if isinstance(source, BatchStream):
            return source.parts()
        return source.parts(batches(source.samples, source.batch_size, seed=self.seed, start_step=self.step, source=source.name))

    def _one_step(self, batch: tuple[Any, Any], agreed: BatchAgreement, stop: Callable[[], bool]) -> StepOutcome:
        sampled = self.step % self.plan.micro_batches if self._sample_every and self.step % self._sample_every == 0 else -1
        return self._training.run(*batch, step=self.step, total=agreed.total, sampled=sampled, stop=stop, exchange_clocks=self._survey.due)

    def _tell(self, source: BatchSource | BatchStream, batch: tuple[Any, Any], outcome: StepOutcome) -> None:
        # One rank of each replica counts its samples, so that sums over ranks are right.
        samples = mb.batch_size(batch[0]) if self.pipeline.owns_last else 0
        self.telemetry.step_done(
            StepSummary(
                step=self.step,
                loss=outcome.loss,
                samples=samples,
                tokens=samples * source.tokens_per_sample,
                gradient_norm=outcome.gradient_norm,
                learning_rate=outcome.learning_rate,
            )
        )

    def _fail(self, error: BaseException) -> None:
        failure = RankFailure.of(error, rank=self.world.rank)
        write_failure(self.run.path / "failures", failure)
        self._status = RunStatus.FAILED
        atexit.unregister(self.close)  # the other ranks may be gone: nothing may wait for them
        self._setup.fail(self.run, failure)
        self.telemetry.close(self._status)  # last: a collector that is waited for shall read how the run ended
