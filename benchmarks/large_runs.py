"""Large synthetic runs: one simulated step, laid end to end as often as wanted, written through the event store.

A step is simulated and turned into events once; its copies differ by their place in time and by a little noise. So a run of a million
events takes seconds to write, and everything that reads it does what it would do with a real one.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pptoolkit.plan import Plan, equal_layer_cuts, fingerprint_layers
from pptoolkit.schedule import ActionKind, build_schedule
from pptoolkit.simulator import Costs, MemoryCosts, schedule_bubble_ratio, simulate
from pptoolkit.simulator.events import EventSettings, to_events
from pptoolkit.telemetry import Attempt, EventWriter, LayerFacts, Op, RunDirectory, RunInfo, RunStatus
from pptoolkit.telemetry.json_files import replace_json
from pptoolkit.telemetry.scalars import ScalarWriter, StepSummary

FORWARD_S = 1e-3
_ORIGIN_NS = 81_000_000_000_000
_STEP, _OP, _START, _END, _FLAGS = 0, 3, 5, 6, 9  # columns of an event row
_FIRST_USE = 2


@dataclass(kw_only=True)
class LargeRun:
    """A run that can grow by whole steps.

    Args:
        root: Folder of runs.
        run_id: Name of the run.
        ranks: Pipeline ranks, one stage each.
        micro_batches: Micro-batches a step.
        schedule: Name of the schedule.
    """

    root: Path
    run_id: str
    ranks: int
    micro_batches: int = 8
    schedule: str = "1f1b"
    done: int = 0
    _rows: list[npt.NDArray[np.int64]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        schedule = build_schedule(self.schedule, ranks=self.ranks, micro_batches=self.micro_batches)
        stages = schedule.stages
        costs = Costs(
            op_s={(s, k): t for s in range(stages) for k, t in ((ActionKind.FORWARD, FORWARD_S), (ActionKind.BACKWARD, 2 * FORWARD_S))},
            transfer_s={(a, b): 2e-4 for a in range(stages) for b in (a - 1, a + 1) if 0 <= b < stages},
            send_s=2e-5,
            action_overhead_s=1e-5,
            before_s=dict.fromkeys(range(self.ranks), 2e-4),
            after_s=dict.fromkeys(range(self.ranks), 6e-4),
        )
        memory = MemoryCosts(activation_bytes=dict.fromkeys(range(stages), 8 << 20), static_bytes=dict.fromkeys(range(stages), 64 << 20))
        step = simulate(schedule, costs)
        settings = EventSettings(origin_ns=_ORIGIN_NS, memory=memory, message_bytes=dict.fromkeys(costs.transfer_s, 1 << 18))
        self._rows = [np.array(own, dtype=np.int64) for own in to_events([step], settings)]
        self._step_ns = round(step.step_time_s * 1e9)
        layers = [f"block{i}" for i in range(2 * stages)]
        self.directory = RunDirectory.create(self.root / self.run_id, self._info(layers, schedule_bubble_ratio(schedule), stages))
        self._writers = [EventWriter(self.directory, rank=rank, host="node0") for rank in range(self.ranks)]
        self._scalars = ScalarWriter(self.directory, rank=self.ranks - 1)

    def _info(self, layers: list[str], ratio: float, stages: int) -> RunInfo:
        plan = Plan(
            cuts=equal_layer_cuts(len(layers), stages),
            schedule=self.schedule,
            micro_batches=self.micro_batches,
            fingerprint=fingerprint_layers(layers),
        )
        now = time.time()
        return RunInfo(
            run_id=self.run_id,
            name=self.run_id,
            status=RunStatus.RUNNING,
            created_unix_s=now,
            attempts=(Attempt(attempt=0, started_unix_s=now, status=RunStatus.RUNNING),),
            layers=tuple(layers),
            layer_facts=tuple(LayerFacts(name=name, parameters=1000, parameter_bytes=4000) for name in layers),
            fingerprint=plan.fingerprint,
            plan=plan.to_dict(),
            stage_to_rank=tuple(range(stages)),
            ranks=self.ranks,
            schedule=self.schedule,
            micro_batches=self.micro_batches,
            schedule_bubble_ratio=ratio,
            steps=1_000_000,
            batch_size=self.micro_batches,
        )

    @property
    def events_per_step(self) -> int:
        return sum(len(rows) for rows in self._rows)

    @property
    def step_time_s(self) -> float:
        return self._step_ns / 1e9

    def train(self, steps: int) -> "LargeRun":
        """Append ``steps`` complete steps of all ranks."""
        numbers = np.arange(self.done, self.done + steps)
        for rank, (writer, rows) in enumerate(zip(self._writers, self._rows, strict=True)):
            writer.append(self._copies(rows, numbers, np.random.default_rng((rank, self.done))))
            writer.flush()
        times = np.random.default_rng(self.done).normal(self.step_time_s, 0.01 * self.step_time_s, steps)
        summaries = [StepSummary(step=int(n), loss=2.0 + 6.0 * 0.999**n, samples=self.micro_batches) for n in numbers]
        self._scalars.append([s.to_line(step_time_s=float(t)) for s, t in zip(summaries, times, strict=True)])
        self.done += steps
        self.beat()
        return self

    def _copies(self, rows: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64], random: np.random.Generator) -> npt.NDArray[np.int64]:
        copies = np.tile(rows, (len(numbers), 1))
        of_step = np.repeat(numbers, len(rows))
        copies[:, _STEP] = of_step
        copies[:, [_START, _END]] += (of_step * self._step_ns)[:, None]
        # Compute ends a little earlier than simulated, so that no two steps are alike and nothing overlaps.
        short = (random.random(len(copies)) * 0.05 * (copies[:, _END] - copies[:, _START])).astype(np.int64)
        copies[:, _END] -= np.where(copies[:, _OP] <= int(Op.BACKWARD_WEIGHT), short, 0)
        copies[of_step == 0, _FLAGS] = _FIRST_USE
        return copies

    def beat(self) -> None:
        """Write every rank's sign of life."""
        now = time.time()
        body = {"unix_s": now, "step": self.done, "op": "forward", "op_start_unix_s": now, "micro_batch": 0, "stage": 0}
        for rank in range(self.ranks):
            replace_json(self.directory.heartbeat_path(rank), {"rank": rank, **body})

    def close(self) -> None:
        """Close the files; the run stays as it is."""
        for writer in self._writers:
            writer.close()
