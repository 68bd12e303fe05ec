"""Runs made by the simulator and written through the event store: what the dashboard sees is what a real run would leave.

Also for eyes: ``python -m tests.dashboard.synthetic RUNS`` fills a folder with runs and keeps one of them training.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pptoolkit.analysis.segments import Segment, segments_of
from pptoolkit.plan import Origin, Plan, Prediction, equal_layer_cuts, fingerprint_layers
from pptoolkit.schedule import Action, ActionKind, build_schedule
from pptoolkit.simulator import Costs, MemoryCosts, schedule_bubble_ratio, simulate_steps
from pptoolkit.simulator.events import EventSettings, to_events
from pptoolkit.telemetry import Attempt, Event, EventWriter, Flag, LayerFacts, Op, RunDirectory, RunInfo, RunStatus
from pptoolkit.telemetry.json_files import replace_json
from pptoolkit.telemetry.scalars import ScalarWriter, StepSummary

SAMPLE_EVERY = 4  # steps between those in which micro-batch 0 has its layers timed
_ORIGIN_NS = 81_000_000_000_000  # as of a machine that has been up for a day


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticLayer:
    name: str
    forward_s: float
    backward_s: float
    parameters: int = 100_000


def gpt_layers(blocks: int = 8, *, unit_s: float = 0.001) -> tuple[SyntheticLayer, ...]:
    """An embedding that is cheap, equal blocks, and a head as heavy as several of them."""
    return (
        SyntheticLayer(name="embed", forward_s=0.3 * unit_s, backward_s=0.4 * unit_s, parameters=512_000),
        *(SyntheticLayer(name=f"block{i}", forward_s=unit_s, backward_s=2 * unit_s, parameters=198_000) for i in range(blocks)),
        SyntheticLayer(name="head", forward_s=3.2 * unit_s, backward_s=6.4 * unit_s, parameters=516_000),
    )


@dataclass(kw_only=True)
class SyntheticRun:
    """One run that can grow. Every call of :meth:`train` appends complete steps, as a training job would."""

    root: Path
    run_id: str
    layers: tuple[SyntheticLayer, ...] = field(default_factory=gpt_layers)
    stages: int = 4
    cuts: tuple[int, ...] | None = None
    schedule: str = "1f1b"
    micro_batches: int = 8
    jitter: float = 0.02
    seed: int = 0
    steps_asked: int = 40
    parent: str | None = None
    prediction: Prediction | None = None
    ranks: int | None = None
    transfer_s: float = 0.0004

    def __post_init__(self) -> None:
        self.done = 0
        self._first_uses = {0}
        self._clock_ns = _ORIGIN_NS
        self._random = np.random.default_rng(self.seed)
        cuts = equal_layer_cuts(len(self.layers), self.stages) if self.cuts is None else self.cuts
        names = [layer.name for layer in self.layers]
        self.plan = Plan(
            cuts=cuts,
            schedule=self.schedule,
            micro_batches=self.micro_batches,
            fingerprint=fingerprint_layers(names),
            origin=Origin(run=self.parent) if self.parent else None,
            prediction=self.prediction,
        )
        self._schedule = build_schedule(
            self.schedule, ranks=self.ranks or self.stages, micro_batches=self.micro_batches, stages=self.stages
        )
        self.directory = RunDirectory.create(self.root / self.run_id, self._info(names))
        self._writers = [EventWriter(self.directory, rank=r, host="node0") for r in range(self._schedule.ranks)]
        self._scalars = ScalarWriter(self.directory, rank=self._schedule.stage_to_rank[-1])

    def _info(self, names: Sequence[str]) -> RunInfo:
        return RunInfo(
            run_id=self.run_id,
            name=self.run_id,
            status=RunStatus.WAITING,
            created_unix_s=time.time(),
            command=("pptoolkit", "train", "examples/gpt.toml"),
            seed=self.seed,
            layers=tuple(names),
            layer_facts=tuple(
                LayerFacts(
                    name=n,
                    parameters=layer.parameters,
                    parameter_bytes=4 * layer.parameters,
                    activation_bytes=1 << 20,
                    boundary_bytes=1 << 18,
                )
                for n, layer in zip(names, self.layers, strict=True)
            ),
            fingerprint=self.plan.fingerprint,
            plan=self.plan.to_dict(),
            stage_to_rank=self._schedule.stage_to_rank,
            ranks=self._schedule.ranks,
            schedule=self.schedule,
            micro_batches=self.micro_batches,
            schedule_bubble_ratio=schedule_bubble_ratio(self._schedule),
            steps=self.steps_asked,
            batch_size=32,
            tokens_per_sample=128,
            parent=self.parent,
            hosts=("node0",),
        )

    def train(self, steps: int) -> "SyntheticRun":
        """Append ``steps`` complete steps of all ranks."""
        if self.done == 0:
            self.set_status(RunStatus.RUNNING)
        simulated = simulate_steps(self._schedule, [self._costs() for _ in range(steps)])
        settings = EventSettings(first_step=self.done, origin_ns=self._clock_ns, message_bytes=self._sizes(), memory=self._memory())
        events = to_events(simulated, settings)
        if self.done == 0:
            for rank, own in enumerate(events):
                own[:0] = self._before_the_first_step(rank)
        for writer, own in zip(self._writers, events, strict=True):
            writer.append([marked for event in own for marked in self._with_layers(event)])
            writer.flush()
        times = [e.end_ns - e.start_ns for e in events[0] if e.op == Op.STEP]
        lines = []
        for number, duration_ns in enumerate(times, start=self.done):
            loss = 2.0 + 6.3 * 0.94**number + 0.02 * float(np.random.default_rng(number).standard_normal())
            summary = StepSummary(step=number, loss=loss, samples=32, tokens=4096, gradient_norm=1.0, learning_rate=3e-4)
            lines.append(summary.to_line(step_time_s=duration_ns / 1e9))
        self._scalars.append(lines)
        self.done += steps
        self._clock_ns = max(e.end_ns for own in events for e in own)
        self.beat()
        return self

    def recut(self, cuts: tuple[int, ...], prediction: Prediction) -> "SyntheticRun":
        """Go on under other cuts, as a training does that is cut anew: the coming steps are of another segment."""
        before = self.directory.read_info()
        old, self.plan = self.plan, self.plan.evolve(cuts=cuts, prediction=prediction, origin=Origin(run=self.run_id))
        sentence = (
            f"step {self.done}: cuts {list(old.cuts)} -> {list(cuts)}, predicted {1e3 * prediction.step_time_s:.1f} ms a step "
            f"instead of {1e3 * prediction.baseline_step_time_s:.1f}"
        )
        begun = Segment(
            first_step=self.done,
            plan=self.plan.to_dict(),
            began_unix_s=time.time(),
            moving_s=0.31,
            moved_bytes=9 << 20,
            sentence=sentence,
        )
        segments = [segment.model_dump(mode="json") for segment in (*segments_of(before), begun)]
        self.directory.update_info(plan=self.plan.to_dict(), segments=segments)
        self._first_uses.add(self.done)
        return self

    def beat(self) -> None:
        now = time.time()
        for rank in range(self._schedule.ranks):
            body = {"rank": rank, "host": "node0", "unix_s": now, "step": self.done, "op": "forward", "op_start_unix_s": now}
            body |= {"stage": rank, "micro_batch": 0, "resident_bytes": 700 << 20, "host_cpu_ratio": 0.24}
            replace_json(self.directory.heartbeat_path(rank), body)

    def set_status(self, status: RunStatus, message: str = "") -> None:
        now = time.time()
        ended = now if status.ended else None
        attempt = Attempt(attempt=0, started_unix_s=now, ended_unix_s=ended, status=status, message=message)
        self.directory.update_info(status=status, message=message, attempts=[attempt.model_dump(mode="json")])

    def finish(self, status: RunStatus = RunStatus.FINISHED, message: str = "") -> "SyntheticRun":
        for writer in self._writers:
            writer.close()
        self.set_status(status, message)
        return self

    def _costs(self) -> Costs:
        """One step's costs: layers summed per stage, and every op a little off."""
        own = {}
        for stage, layers in enumerate(self.plan.stage_layers(len(self.layers))):
            for order in self._schedule.orders:
                for action in order:
                    if action.stage == stage:
                        own[action] = self._op_seconds(action, layers) * float(self._random.normal(1.0, self.jitter))
        ranks = range(self._schedule.ranks)
        borders = {(a, b): self.transfer_s for a in range(self.stages) for b in (a - 1, a + 1) if 0 <= b < self.stages}
        return Costs(
            op_s={},
            overrides={action: max(seconds, 1e-6) for action, seconds in own.items()},
            transfer_s=borders,
            send_s=3e-5,
            action_overhead_s=2e-5,
            before_s=dict.fromkeys(ranks, 3e-4),
            after_s=dict.fromkeys(ranks, 1.2e-3),
        )

    def _op_seconds(self, action: Action, layers: range) -> float:
        forward = sum(self.layers[i].forward_s for i in layers)
        backward = sum(self.layers[i].backward_s for i in layers)
        parts = {ActionKind.FORWARD: forward, ActionKind.BACKWARD: backward}
        return parts.get(action.kind, backward / 2)

    def _memory(self) -> MemoryCosts:
        """Activations of a MiB a layer and micro-batch; parameters with gradients and two moments of the optimizer."""
        stages = list(enumerate(self.plan.stage_layers(len(self.layers))))
        return MemoryCosts(
            activation_bytes={stage: len(layers) << 20 for stage, layers in stages},
            static_bytes={stage: 16 * sum(self.layers[i].parameters for i in layers) for stage, layers in stages},
        )

    def _sizes(self) -> dict[tuple[int, int], int]:
        return {(a, b): 1 << 18 for a in range(self.stages) for b in (a - 1, a + 1) if 0 <= b < self.stages}

    def _before_the_first_step(self, rank: int) -> list[Event]:
        """What a rank measures before it trains: its clock against rank 0's, and the idle links to its neighbours."""
        at = self._clock_ns - 50_000_000
        found = [Event(-1, -1, -1, int(Op.CLOCK), -1, at, 0, 4_000 + 500 * rank, 0, 0)] if rank else []
        for stage in self._schedule.stages_of(rank):
            for peer in (stage - 1, stage + 1):
                if 0 <= peer < self.stages and self.transfer_s > 0:
                    end = at + round(0.8e9 * self.transfer_s)
                    found.append(Event(-1, stage, -1, int(Op.PROBE), peer, at, end, 1 << 18, 0, 0))
        return found

    def _with_layers(self, event: Event) -> list[Event]:
        """Time the layers of micro-batch 0 now and then, as the engine does: inside the op, in order."""
        if event.step in self._first_uses:
            event = event._replace(flags=int(Flag.FIRST_USE))
        if event.step % SAMPLE_EVERY or event.micro_batch or event.op not in (Op.FORWARD, Op.BACKWARD):
            return [event]
        mine = self.plan.stage_layers(len(self.layers))[event.stage]
        forward = event.op == Op.FORWARD
        weights = [self.layers[i].forward_s if forward else self.layers[i].backward_s for i in mine]
        edges = event.start_ns + np.concatenate([[0.0], np.cumsum(weights)]) / sum(weights) * (event.end_ns - event.start_ns)
        timed = [
            event._replace(
                op=int(Op.LAYER_FORWARD if forward else Op.LAYER_BACKWARD), peer=i, start_ns=int(a), end_ns=int(b), flags=event.flags
            )
            for i, a, b in zip(mine, edges, edges[1:], strict=False)
        ]
        return [*timed, event._replace(flags=event.flags | int(Flag.SAMPLED))]


def demo_runs(root: Path) -> SyntheticRun:
    """Write the runs of a first day: a naive cut, the suggested one applied to it, an unlucky one, a waiting one, one that cut itself
    anew, one that trains."""
    naive = SyntheticRun(root=root, run_id="gpt-1-equal-layers").train(40).finish()
    prediction = Prediction(step_time_s=0.1064, low_s=0.1051, high_s=0.1077, bubble_ratio=0.28, baseline_step_time_s=0.1271)
    SyntheticRun(root=root, run_id="gpt-2-suggested-cuts", cuts=(4, 7, 9), parent=naive.run_id, prediction=prediction).train(40).finish()
    failed = SyntheticRun(root=root, run_id="gpt-3-out-of-memory", seed=3, schedule="gpipe").train(11)
    failed.finish(RunStatus.FAILED, "rank 3 was killed by signal 9 in step 11; the kernel's out-of-memory killer does that")
    SyntheticRun(root=root, run_id="gpt-4-waiting")
    SyntheticRun(root=root, run_id="gpt-5-cut-anew", seed=2).train(20).recut((4, 7, 9), prediction).train(20).finish()
    return SyntheticRun(root=root, run_id="gpt-6-live", seed=5, steps_asked=2000).train(24)


def main() -> None:
    root = Path(sys.argv[1])
    live = demo_runs(root)
    while live.done < live.steps_asked:
        time.sleep(1.0)
        live.train(4)


if __name__ == "__main__":
    main()
