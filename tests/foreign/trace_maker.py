"""Traces in the form of the production ones, whose truth is known: simulated, with the slow part put in on purpose."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from pptoolkit.schedule import Action, ActionKind, build_schedule
from pptoolkit.simulator import Costs, Program, SimulatedStep, simulate_steps

_TYPES = {ActionKind.FORWARD: "forward", ActionKind.BACKWARD: "backward"}


@dataclass(kw_only=True)
class Job:
    """A job; times in seconds.

    Args:
        stage_factor: Times the usual work, by stage.
        forward_factor: Likewise, of the forward alone.
        device_factor: Times as slow, by (replica, pipeline rank).
        link_s: Transfer times of single links in place of ``transfer_s``, by (source stage, destination stage); on all replicas.
        micro_batch_spread: Standard deviation of a micro-batch's work, the same on all stages.
        pause_s: Length of a pause, in a random op of pipeline rank 1 of replica 0 in every ``pause_every``-th step.
        pauses_told: The trace has a row for each pause, as for collections of garbage.
    """

    replicas: int = 2
    ranks: int = 4
    schedule: str = "1f1b"
    micro_batches: int = 4
    steps: int = 20
    forward_s: float = 0.06
    backward_s: float = 0.13
    transfer_s: float = 0.0005
    noise: float = 0.01
    stage_factor: Mapping[int, float] = field(default_factory=dict)
    forward_factor: Mapping[int, float] = field(default_factory=dict)
    link_s: Mapping[tuple[int, int], float] = field(default_factory=dict)
    device_factor: Mapping[tuple[int, int], float] = field(default_factory=dict)
    micro_batch_spread: float = 0.0
    pause_s: float = 0.0
    pause_every: int = 4
    pauses_told: bool = False
    seed: int = 0
    first_step: int = 100


def make_trace(job: Job) -> pd.DataFrame:
    """The job's trace."""
    generator = random.Random(job.seed)
    program = Program(build_schedule(job.schedule, ranks=job.ranks, micro_batches=job.micro_batches))
    rows: list[tuple[object, ...]] = []
    ends: list[list[float]] = []
    replicas = [_play(job, program, replica, generator) for replica in range(job.replicas)]
    for index in range(job.steps):
        done = max(max(steps[index].timeline.rank_done_s) - _begin(steps[index]) for steps in replicas)
        for replica, steps in enumerate(replicas):
            _write(rows, job, program, replica, job.first_step + index, steps[index], done)
        ends.append([done])
    columns = ["dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id", "gmc"]
    return pd.DataFrame(rows, columns=columns).astype({"start_ts": "float32", "duration": "float32", "optype": "category"})


def _begin(step: SimulatedStep) -> float:
    return max(step.timeline.rank_start_s)


def _play(job: Job, program: Program, replica: int, generator: random.Random) -> list[SimulatedStep]:
    per_step = []
    stages = program.schedule.stages
    base = {ActionKind.FORWARD: job.forward_s, ActionKind.BACKWARD: job.backward_s}
    for index in range(job.steps):
        heavy = [max(0.2, generator.gauss(1.0, job.micro_batch_spread)) for _ in range(job.micro_batches)]
        own: dict[Action, float] = {}
        for action in program.actions:
            rank = program.schedule.stage_to_rank[action.stage]
            factor = job.stage_factor.get(action.stage, 1.0) * job.device_factor.get((replica, rank), 1.0) * heavy[action.micro_batch]
            factor *= job.forward_factor.get(action.stage, 1.0) if action.kind is ActionKind.FORWARD else 1.0
            own[action] = base[action.kind] * factor * generator.gauss(1.0, job.noise)
        if job.pause_s and index % job.pause_every == 0 and replica == 0:
            own[generator.choice([a for a in program.actions if program.schedule.stage_to_rank[a.stage] == 1])] += job.pause_s
        links = {**{(a, b): job.transfer_s for a in range(stages) for b in (a - 1, a + 1)}, **job.link_s}
        op_s = {(stage, kind): seconds for stage in range(stages) for kind, seconds in base.items()}
        per_step.append(Costs(op_s=op_s, overrides=own, transfer_s=links, after_s=dict.fromkeys(range(job.ranks), 0.05)))
    return simulate_steps(program, per_step)


def _write(
    rows: list[tuple[object, ...]], job: Job, program: Program, replica: int, step: int, played: SimulatedStep, done_s: float
) -> None:
    line, origin, count = played.timeline, _begin(played), {}
    schedule = program.schedule

    def add(rank: int, kind: str, start: float, end: float, part: int = -1, micro_batch: int = -1) -> None:
        seq = count[rank, kind] = count.get((rank, kind), -1) + 1
        mc = schedule.stages_of(rank).index(part) if part >= 0 else -1
        rows.append((replica, rank, rank * job.replicas + replica, step, kind, start - origin, end - start, seq, mc, micro_batch, part))

    for index, action in enumerate(program.actions):
        rank, need, link = program.ranks[index], program.needs[index], program.out_links[index]
        if need >= 0 and program.out_links[need] >= 0:
            way = "forward" if program.actions[need].kind is ActionKind.FORWARD else "backward"
            add(rank, f"{way}-recv", line.ready_s[index], line.start_s[index])
        add(rank, f"{_TYPES[action.kind]}-compute", line.start_s[index], line.end_s[index], action.stage, action.micro_batch)
        if job.pauses_told and line.end_s[index] - line.start_s[index] > job.pause_s > 0:
            add(rank, "gc", line.end_s[index] - job.pause_s, line.end_s[index])
        if link >= 0:
            add(rank, f"{_TYPES[action.kind]}-send", line.end_s[index], line.end_s[index] + 1e-5)
    for rank in range(schedule.ranks):
        over, end = line.rank_done_s[rank], origin + done_s
        add(rank, "layernorm-grads-all-reduce", over, over + 1e-5)
        add(rank, "optimizer-clip-main-grad", over + 1e-5, end + 0.01)
        add(rank, "optimizer", end + 0.01, end + 0.05)


def parts_of(values: Sequence[float]) -> float:
    """Their sum; for parts that must sum to something."""
    return float(sum(values))
