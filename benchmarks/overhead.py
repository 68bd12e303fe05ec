"""What telemetry costs: a training step with telemetry on against one with it off, alternating within one job.

"On" is all that users get by default: events, layer sampling in every step, event files, metrics endpoint, heartbeat, hardware
sampler. "Off" starts none of it. Both train in the same processes, one block after the other, in random order.

Beside it, on the same sleeping layers, what others' means to look at a training cost theirs: two jobs each, with and without,
that train a block of steps in turns. torch.profiler records the processor's side of every measured step and writes a trace of
every block. DeepSpeed's wall_clock_breakdown is freed of a fault that ends every pipeline under 0.19.8. Its comms logger sums up
all former messages of a kind at every new one, so that its cost grows with the length of the job: the number of steps stands in
the result's name.
"""

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.overhead_ranks import OFF, ON, RESULT, WORKLOADS, sleeping_work
from benchmarks.paired import location, ratio
from benchmarks.ranks import run_ranks
from benchmarks.report import Result, argument_parser, at_most, describe_machine, fail, measured, show, tell
from benchmarks.step_sides import DEEPSPEED, DEEPSPEED_LOGGED, TORCH, TORCH_PROFILED, Work
from benchmarks.turns import add_deepspeed_option, has_deepspeed, measure_in_turns
from pptoolkit.errors import ConfigError, PPToolkitError

GOAL_PERCENT = 0.5
_RANKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another engine, with what it offers to look at a training."""

    engine: str
    off: str  # the sides of benchmarks/step_sides.py
    on: str
    means: str


PEERS = {
    peer.engine: peer
    for peer in (
        Peer(engine="torch", off=TORCH, on=TORCH_PROFILED, means="torch.profiler"),
        Peer(engine="DeepSpeed", off=DEEPSPEED, on=DEEPSPEED_LOGGED, means="wall_clock_breakdown and comms logger"),
    )
}


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--workloads", nargs="*", choices=list(WORKLOADS), default=list(WORKLOADS), help="of ours (default: all)")
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS), help="to set beside ours (default: all)")
    parser.add_argument("--pairs", type=int, help="blocks with and without telemetry, at least 6 (default 30; 6 with --quick)")
    parser.add_argument("--steps", type=int, help="measured steps in a block (default 25; 12 with --quick)")
    add_deepspeed_option(parser)
    options = parser.parse_args()
    pairs = options.pairs or (6 if options.quick else 30)
    steps = options.steps or (12 if options.quick else 25)
    try:
        if pairs < 6:
            raise ConfigError(f"--pairs {pairs} is too few for a 95 % interval; use 6 or more")
        pythons = {"torch": sys.executable, "DeepSpeed": options.deepspeed_python}
        peers = [peer for peer in options.peers if peer != "DeepSpeed" or has_deepspeed(pythons[peer], benchmark="overhead")]
        tell(describe_machine())
        results: list[Result] = []
        for workload in options.workloads:
            results += _measure(workload, pairs=pairs, steps=steps, seed=options.seed)
        for peer in peers:
            results += _measure_peer(PEERS[peer], pythons[peer], sleeping_work(rounds=pairs, block_steps=steps), seed=options.seed)
    except PPToolkitError as error:
        return fail(error)
    show(results, as_json=options.json)
    return 0


def _measure(workload: str, *, pairs: int, steps: int, seed: int) -> list[Result]:
    tell(f"{workload}: {pairs} pairs of blocks of {steps} steps on {_RANKS} ranks")
    with tempfile.TemporaryDirectory(prefix="pptoolkit-overhead-") as name:
        folder = Path(name) / workload
        arguments = ["--workload", workload, "--pairs", str(pairs), "--steps", str(steps), "--seed", str(seed)]
        # A step takes a tenth of a second; the limit allows for a machine that is busy with other things.
        run_ranks("benchmarks.overhead_ranks", arguments, ranks=_RANKS, folder=folder, limit_s=240 + 2 * pairs * (5 + steps))
        found = json.loads((folder / RESULT).read_text())
    on, off, micro_batch_s = found[ON], found[OFF], found["micro_batch_s"]
    overhead = ratio(on, off).shifted(-1).scaled(100)
    return [
        at_most(f"{workload}: telemetry's share of the step", overhead, "%", goal=GOAL_PERCENT),
        measured(f"{workload}: step without telemetry", location(off).scaled(1e3), "ms"),
        measured(f"{workload}: micro-batch (forward and backward of a stage)", location(micro_batch_s).scaled(1e3), "ms"),
    ]


def _measure_peer(peer: Peer, python: str, work: Work, *, seed: int) -> list[Result]:
    tell(f"{peer.engine}: {work.rounds} pairs of blocks of {work.block_steps} steps")
    times = measure_in_turns({peer.off: python, peer.on: python}, work, ranks=_RANKS, seed=seed)
    return peer_results(peer, on=times[peer.on], off=times[peer.off], steps=work.steps)


def peer_results(peer: Peer, *, on: list[float], off: list[float], steps: int) -> list[Result]:
    """Return what a peer's means cost; nothing is promised of it.

    Args:
        peer: Which one.
        on: Seconds per step with its means, one a round.
        off: The same without.
        steps: In all, of each.
    """
    share = ratio(on, off).shifted(-1).scaled(100)
    return [
        measured(f"{peer.engine}: {peer.means}'s share of the step, in a job of {steps} steps", share, "%"),
        measured(f"{peer.engine}: step without", location(off).scaled(1e3), "ms"),
    ]


if __name__ == "__main__":
    sys.exit(main())
