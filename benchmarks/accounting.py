"""Is a delay found where it is? Known delays in one place at a time, against what the accounting says of every place.

A part is a rank's own time: its compute, its data loading, its optimizer, or a link's transfers. Other ranks wait for a
delayed one; waiting is no part of theirs, and is not looked at here. Blocks with and without a delay take turns in one job.
The job times on a clock of its own what it brings along (layers, loss, loader, optimizer): a sleep takes longer than told on a
busy machine, and what follows an idle time is slower than what follows work. Where the job was told to sleep longer, the
accounting must have found as much more as really passed there, and no more than really passed everywhere else.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from benchmarks import accounting_job as job
from benchmarks.paired import Estimate, location
from benchmarks.report import Result, argument_parser, describe_machine, fail, measured, show, tell
from pptoolkit.analysis.links import pair_messages
from pptoolkit.errors import ConfigError, PPToolkitError, TrainingError
from pptoolkit.run import Run
from pptoolkit.telemetry.accounting import split_steps
from tests.support.hosts import two_hosts, why_no_hosts

TOLERANCE = 0.05
_PLACE = {
    job.FORWARD: "rank 1 compute",
    job.BACKWARD: "rank 1 compute",
    job.DATA: "rank 0 data",
    job.OPTIMIZER: "rank 1 optimizer",
    job.LINK: "link 0->1",
}
# Ethernet, IP and TCP headers with time stamps are sent, and limited, with every 1448 bytes.
_LINK_S = job.MICRO_BATCHES * (job.MESSAGE_BYTES * 1514 / 1448 - job.BURST_BYTES) * 8 / job.RATE_BITS


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--rounds", type=int, help="blocks with each delay, at least 6 (default 20; 6 with --quick)")
    options = parser.parse_args()
    rounds = options.rounds or (6 if options.quick else 20)
    try:
        if rounds < 6:
            raise ConfigError(f"--rounds {rounds} is too few for a 95 % interval; use 6 or more")
        tell(describe_machine())
        reason = why_no_hosts()
        kinds = [kind for kind in job.KINDS if reason is None or kind != job.LINK]
        if reason is not None:
            tell(f"no limited link: {reason}")
        with tempfile.TemporaryDirectory(prefix="pptoolkit-accounting-") as name:
            folder = Path(name)
            tell(f"{job.steps_of(rounds, kinds)} steps, {rounds} blocks with each of {', '.join(kinds)}")
            _train(folder, rounds, kinds, hosts=reason is None)
            run = Run.open(folder / "run")
            blocks = _blocks(run, folder)
            results = [result for kind in kinds for result in judge(kind, blocks, kinds)]
            results.append(_unattributed(run))
    except PPToolkitError as error:
        return fail(error)
    show(results, as_json=options.json)
    return 0


def _train(folder: Path, rounds: int, kinds: list[str], *, hosts: bool) -> None:
    arguments = [str(folder), str(rounds), ",".join(kinds)]
    limit_s = 120 + 0.6 * job.steps_of(rounds, kinds)
    if hosts:
        with two_hosts(folder) as pair:
            for node, host in enumerate(pair):
                host.torchrun(job.__file__, *arguments, node=node, master=pair[0].address)
            deadline = time.monotonic() + limit_s
            for host in pair:
                if host.processes[0].wait(max(1.0, deadline - time.monotonic())):
                    raise TrainingError(f"{host.name} failed:\n{host.output()}")
        return
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", job.__file__]
    done = subprocess.run([*torchrun, *arguments], capture_output=True, text=True, timeout=limit_s, check=False)
    if done.returncode:
        raise TrainingError(f"the job failed:\n{done.stderr}")


def _blocks(run: Run, folder: Path) -> pd.DataFrame:
    """Return seconds a step of every part, less what the job's own clock says of it; one row a block, in order.

    Of each part the smallest of the block's steps: what else runs on the machine only ever adds, to both blocks of a pair.
    """
    steps = split_steps(run.events).set_index(["step", "rank"])
    parts = {
        f"rank {rank} {state}": steps[f"{state}_ns"].xs(rank, level="rank") / 1e9
        for rank in (0, 1)
        for state in ("compute", "data", "optimizer", "host", "unattributed")
    }
    for rank in (0, 1):
        for state, seconds in json.loads((folder / f"passed-{rank}.json").read_text()).items():
            parts[f"rank {rank} {state}"] -= pd.Series(seconds)
    sent = pair_messages(run.timeline(), uncertainty_ns={})
    for src, dst in ((0, 1), (1, 0)):
        # The first message of a step stands for all: later ones may queue behind it, or come while the receiver computes.
        # Its receive must have been posted before it was sent: else part of the way was over before both ends were ready.
        whole = sent["blocked"] & (sent["post_ns"] <= sent["send_start_ns"])
        first = sent[(sent["src_stage"] == src) & (sent["micro_batch"] == 0) & whole].set_index("step")
        parts[f"link {src}->{dst}"] = first["transfer_s"].clip(lower=0) * job.MICRO_BATCHES
    table = pd.DataFrame(parts)
    table = table[table.index % job.BLOCK_STEPS != 0]
    table["block"] = table.index // job.BLOCK_STEPS
    return table.groupby("block").min()


def judge(kind: str, blocks: pd.DataFrame, kinds: list[str]) -> list[Result]:
    """Compare each block that has the delay with the block without one right before it.

    Args:
        kind: What is delayed.
        blocks: Seconds a step, one row a block and one column a part; what the job's own clock knows of is taken off.
        kinds: Everything that is delayed in turn.

    Raises:
        TrainingError: If the delayed part was seen in too few blocks.
    """
    delayed = [block for block in blocks.index if job.kind_of(block * job.BLOCK_STEPS, kinds) == kind]
    changes: Mapping[str, list[float]] = {
        part: [float(change) for b in delayed if (change := blocks.loc[b, part] - blocks.loc[b - 1, part]) == change]
        for part in blocks.columns
    }
    place = _PLACE[kind]
    if len(changes[place]) < 6:
        raise TrainingError(f"{kind}: {place} was seen in {len(changes[place])} of {len(delayed)} pairs of blocks; use more --rounds")
    injected = _LINK_S if kind == job.LINK else job.DELAY_S
    found = location(changes[place]).scaled(1 / injected)
    if kind != job.LINK:
        found = found.shifted(1.0)  # what really passed is already subtracted
    strays = {part: location(values).scaled(1 / injected) for part, values in changes.items() if part != place and len(values) >= 6}
    worst = max(strays, key=lambda part: max(-strays[part].low, strays[part].high))
    return [
        _near(f"{kind}: found in {place}, of {injected * 1e3:.1f} ms a step", found, expected=1.0),
        _near(f"{kind}: most in another part ({worst})", strays[worst], expected=0.0),
    ]


def _near(name: str, found: Estimate, *, expected: float) -> Result:
    """Return a result whose whole interval must lie within the tolerance of what is expected: a lucky median does not count."""
    return Result(
        name=name,
        value=found.value,
        low=found.low,
        high=found.high,
        unit="of it",
        goal=f"{expected:g} +-{TOLERANCE:g}",
        holds=expected - TOLERANCE <= found.low and found.high <= expected + TOLERANCE,
    )


def _unattributed(run: Run) -> Result:
    steps = split_steps(run.events)
    shares = (steps["unattributed_ns"] / steps["wall_ns"]).tolist()
    picked = location(shares[:: max(1, len(shares) // 200)])
    return measured("unattributed share of a step", Estimate(value=picked.value, low=picked.low, high=picked.high), "")


if __name__ == "__main__":
    sys.exit(main())
