"""Runs whose truth is known: simulated with given layer costs, written and read back like real ones."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pptoolkit.plan import Plan
from pptoolkit.run import Run
from pptoolkit.schedule import Action, ActionKind, Schedule, build_schedule
from pptoolkit.simulator import Costs, Program, simulate, simulate_steps
from pptoolkit.simulator.events import EventSettings, to_events
from pptoolkit.telemetry import Event, EventWriter, Flag, LayerFacts, Op, RunDirectory, RunInfo, RunStatus, StepSummary
from pptoolkit.telemetry.scalars import ScalarWriter

FINGERPRINT = "0123456789abcdef"
_ORIGIN_NS = 5_000_000_000_000
_TIMED = {
    int(Op.FORWARD): Op.LAYER_FORWARD,
    int(Op.BACKWARD): Op.LAYER_BACKWARD,
    int(Op.BACKWARD_INPUT): Op.LAYER_BACKWARD,
    int(Op.BACKWARD_WEIGHT): Op.LAYER_BACKWARD,
}


@dataclass(kw_only=True)
class Truth:
    """What a synthetic run is made of; times in seconds.

    Args:
        backward_s: Default: twice the forward.
        noise: Standard deviation of an op's time as a ratio, drawn anew per op.
        sampling_cost: How much longer an op takes whose layers are timed, as a ratio.
        first_step_factor: How much slower the first step is.
        optimizer_s_per_mb: Optimizer time per million bytes of parameters.
        link_s: Transfer times of single links, by (source stage, destination stage), in place of ``transfer_s``.
        ranks: Pipeline ranks; None: one for each stage.
        accumulation: Passes through the schedule in a step.
        agrees_early: The ranks agree at the end of a step without waiting, since all joined before; not with ``joined_end``.
        op_factor: Called with (step, action): times as long as usual.
        op_extra_s: Called with (step, action): seconds longer than usual.
    """

    forward_s: Sequence[float]
    cuts: Sequence[int]
    backward_s: Sequence[float] | None = None
    schedule: str = "1f1b"
    micro_batches: int = 8
    steps: int = 24
    noise: float = 0.0
    seed: int = 0
    parameter_bytes: Sequence[int] | None = None
    transfer_s: float = 0.0
    send_s: float = 0.0
    data_s: float = 0.0
    after_s: float = 0.0
    optimizer_s_per_mb: float = 0.0
    action_overhead_s: float = 0.0
    joined_end: bool = True
    agrees_early: bool = False
    sampling_cost: float = 0.03
    sampled: bool = True
    first_step_factor: float = 1.0
    clock_offset_ns: Mapping[int, int] = field(default_factory=dict)
    clock_uncertainty_ns: int = 2_000
    silent_ranks: Sequence[int] = ()
    loss_shift: float = 0.0
    link_s: Mapping[tuple[int, int], float] = field(default_factory=dict)
    ranks: int | None = None
    accumulation: int = 1
    op_factor: Callable[[int, Action], float] = lambda _step, _action: 1.0
    op_extra_s: Callable[[int, Action], float] = lambda _step, _action: 0.0

    @property
    def layers(self) -> int:
        return len(self.forward_s)

    @property
    def backwards(self) -> list[float]:
        return list(self.backward_s) if self.backward_s is not None else [2 * f for f in self.forward_s]

    @property
    def compute_s(self) -> list[float]:
        return [f + b for f, b in zip(self.forward_s, self.backwards, strict=True)]

    @property
    def plan(self) -> Plan:
        return Plan(cuts=tuple(self.cuts), schedule=self.schedule, micro_batches=self.micro_batches, fingerprint=FINGERPRINT)

    @property
    def sizes(self) -> list[int]:
        return list(self.parameter_bytes) if self.parameter_bytes is not None else [1_000_000] * self.layers


def scheduled(truth: Truth, cuts: Sequence[int]) -> Schedule:
    """All that a step runs under ``cuts``."""
    stages = len(cuts) + 1
    once = build_schedule(truth.schedule, ranks=truth.ranks or stages, stages=stages, micro_batches=truth.micro_batches)
    return once.repeated(truth.accumulation)


def costs_of(truth: Truth, cuts: Sequence[int]) -> Costs:
    """The simulator's costs of the model under ``cuts``, without noise."""
    ranges = Plan(cuts=tuple(cuts)).stage_layers(truth.layers)
    op_s = {}
    for stage, layers in enumerate(ranges):
        op_s[stage, ActionKind.FORWARD] = sum(truth.forward_s[i] for i in layers)
        op_s[stage, ActionKind.BACKWARD] = sum(truth.backwards[i] for i in layers)
        # As the engine does it: nobody waits for an input gradient of the first stage.
        share = 0.4 if stage else 0.0
        op_s[stage, ActionKind.BACKWARD_INPUT] = share * op_s[stage, ActionKind.BACKWARD]
        op_s[stage, ActionKind.BACKWARD_WEIGHT] = (1 - share) * op_s[stage, ActionKind.BACKWARD]
    stages = len(ranges)
    links = [(a, a + 1) for a in range(stages - 1)] + [(a + 1, a) for a in range(stages - 1)]
    after = dict.fromkeys(range(truth.ranks or stages), truth.after_s)
    for stage, rank in enumerate(scheduled(truth, cuts).stage_to_rank):
        after[rank] += truth.optimizer_s_per_mb * sum(truth.sizes[i] for i in ranges[stage]) / 1e6
    return Costs(
        op_s=op_s,
        transfer_s={**dict.fromkeys(links, truth.transfer_s), **truth.link_s},
        send_s=truth.send_s,
        action_overhead_s=truth.action_overhead_s,
        before_s={0: truth.data_s},
        after_s=after,
        joined_end=truth.joined_end,
    )


def true_step_s(truth: Truth, cuts: Sequence[int]) -> float:
    """Step time under ``cuts`` when everything is known."""
    return simulate(scheduled(truth, cuts), costs_of(truth, cuts)).step_time_s


def write_run(path: Path, truth: Truth, *, info_changes: Mapping[str, object] | None = None) -> Run:
    """Write the run directory of a finished run and open it."""
    plan = truth.plan
    schedule = scheduled(truth, truth.cuts)
    samples = 4 * schedule.micro_batches
    names = tuple(f"block{i}" for i in range(truth.layers))
    info = RunInfo(
        run_id=path.name,
        status=RunStatus.FINISHED,
        layers=names,
        layer_facts=tuple(
            LayerFacts(name=n, parameter_bytes=size, boundary_bytes=4096) for n, size in zip(names, truth.sizes, strict=True)
        ),
        fingerprint=FINGERPRINT,
        plan=plan.to_dict(),
        stage_to_rank=schedule.stage_to_rank,
        ranks=schedule.ranks,
        schedule=plan.schedule,
        micro_batches=plan.micro_batches,
        steps=truth.steps,
        accumulation=truth.accumulation,
        batch_size=samples,
        tokens_per_sample=16,
    )
    directory = RunDirectory.create(path, info.evolve(**dict(info_changes or {})))
    for rank, events in enumerate(synthetic_events(truth)):
        if rank not in truth.silent_ranks:
            writer = EventWriter(directory, rank=rank)
            writer.append(events)
            writer.close()
    scalars = ScalarWriter(directory, rank=schedule.ranks - 1)
    lines = []
    for step in range(truth.steps):
        summary = StepSummary(step=step, loss=5.0 / (step + 1) * (1 + truth.loss_shift), samples=samples, tokens=16 * samples)
        lines.append(summary.to_line(step_time_s=true_step_s(truth, truth.cuts)))
    scalars.append(lines)
    return Run.open(path)


def synthetic_events(truth: Truth) -> list[list[Event]]:
    """Events of each rank, with layers timed on one micro-batch a step and clock readings."""
    generator = random.Random(truth.seed)
    schedule = scheduled(truth, truth.cuts)
    program = Program(schedule)
    base = costs_of(truth, truth.cuts)
    sampled_at = [step % truth.micro_batches if truth.sampled else -1 for step in range(truth.steps)]
    costs = [_costs_of_step(truth, base, program, step, sampled_at[step], generator) for step in range(truth.steps)]
    borders = [(a, b) for a in range(schedule.stages) for b in (a - 1, a + 1) if 0 <= b < schedule.stages]
    settings = EventSettings(origin_ns=_ORIGIN_NS, clock_offset_ns=truth.clock_offset_ns, message_bytes=dict.fromkeys(borders, 1_000_000))
    ranks = to_events(simulate_steps(program, costs), settings)
    return [_dress(rank, events, truth, sampled_at, generator) for rank, events in enumerate(ranks)]


def _costs_of_step(truth: Truth, base: Costs, program: Program, step: int, sampled: int, generator: random.Random) -> Costs:
    slow = truth.first_step_factor if step == 0 else 1.0
    overrides: dict[Action, float] = {}
    for action in program.actions:
        factor = slow * (1 + truth.sampling_cost if action.micro_batch == sampled else 1.0) * max(0.1, generator.gauss(1.0, truth.noise))
        factor *= truth.op_factor(step, action)
        overrides[action] = base.duration_s(action.stage, action.kind) * factor + truth.op_extra_s(step, action)
    return Costs(
        op_s=base.op_s,
        overrides=overrides,
        transfer_s=base.transfer_s,
        send_s=base.send_s,
        action_overhead_s=base.action_overhead_s,
        before_s=base.before_s,
        after_s=base.after_s,
        joined_end=base.joined_end,
    )


def _dress(rank: int, events: Sequence[Event], truth: Truth, sampled_at: Sequence[int], generator: random.Random) -> list[Event]:
    layers = truth.plan.stage_layers(truth.layers)
    dressed = []
    offset = truth.clock_offset_ns.get(rank, 0)
    if rank or offset:
        dressed.append(Event(-1, -1, -1, Op.CLOCK, -1, events[0].start_ns, -offset, truth.clock_uncertainty_ns, 0, 0))
    for event in events:
        if truth.agrees_early and event.op == Op.STEP:
            dressed += [event._replace(op=int(op), start_ns=event.end_ns) for op in (Op.REDUCE_POST, Op.REDUCE)]
        flags = int(Flag.FIRST_USE) if event.step == 0 else 0
        if event.op in _TIMED and event.micro_batch == sampled_at[event.step]:
            flags |= int(Flag.SAMPLED)
            mine = layers[event.stage]
            if event.op != (Op.BACKWARD_WEIGHT if event.stage else Op.BACKWARD_INPUT):  # where the engine times layers of a split one
                costs = truth.forward_s if event.op == Op.FORWARD else truth.backwards
                dressed += _layer_events(event, mine, costs, truth.noise, flags, generator)
        dressed.append(event._replace(flags=flags))
    return dressed


def _layer_events(event: Event, layers: range, costs: Sequence[float], noise: float, flags: int, generator: random.Random) -> list[Event]:
    shares = [costs[i] * max(0.1, generator.gauss(1.0, noise)) + 1e-12 for i in layers]
    edges = [event.start_ns]
    for share in shares:
        edges.append(edges[-1] + round((event.end_ns - event.start_ns) * share / sum(shares)))
    return [
        event._replace(op=int(_TIMED[event.op]), peer=i, start_ns=a, end_ns=b, flags=flags)
        for i, a, b in zip(layers, edges, edges[1:], strict=False)
    ]
