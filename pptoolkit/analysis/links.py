"""Links between stages: how long tensors travel, how long ranks wait for them, and how sure that is.

A send and its receive are paired by step, micro-batch, stages and replica on aligned clocks:

    sender     ........ send(start) ---------.
    receiver   post ... wait(start) ~~~~~~~~~~~~~~~~ wait(end)
                                     wait    |  transfer |

transfer = wait end - max(send start, post); what the receiver blocked before that is the wait for the sender.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pptoolkit.analysis.grouping import duration_s, groups_of
from pptoolkit.analysis.statistics import Interval, interval_of
from pptoolkit.analysis.steps import SteadySteps
from pptoolkit.telemetry.events import Flag, Op
from pptoolkit.telemetry.links import RELIABLE_UNCERTAINTIES, saw_arrival

_KEY = ["replica", "step", "micro_batch", "src_stage", "dst_stage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMeasure:
    """What one direction of one stage border did in the usable steps.

    Args:
        kind: ``"activation"`` or ``"gradient"``.
        bytes_per_message: Median size of a message.
        messages: Messages paired with their receive.
        transfer: Seconds a message travels; None without a reliable sample.
        throughput: Bytes per second over those samples; None as above.
        wait_s_per_step: Mean seconds a step that the receiver waits for the sender, all replicas summed.
        samples: Blocked receives above the clock's uncertainty.
        unreliable: Blocked receives that the clock's uncertainty drowns, and those whose transfer nobody timed, as on GPUs.
        unblocked: Receives whose tensor was there before.
        probe_bytes_per_second: Throughput of the idle link before the first step; None without a probe.
        probe_s: Seconds that a probe message took; None without a probe.
    """

    src_stage: int
    dst_stage: int
    kind: str
    bytes_per_message: float
    messages: int
    transfer: Interval | None
    throughput: Interval | None
    wait_s_per_step: float
    samples: int
    unreliable: int
    unblocked: int
    probe_bytes_per_second: float | None
    probe_s: float | None

    def to_dict(self) -> dict[str, object]:
        return {
            "src_stage": self.src_stage,
            "dst_stage": self.dst_stage,
            "kind": self.kind,
            "bytes_per_message": self.bytes_per_message,
            "messages": self.messages,
            "transfer_s": self.transfer.to_dict() if self.transfer else None,
            "throughput_bytes_per_second": self.throughput.to_dict() if self.throughput else None,
            "wait_s_per_step": self.wait_s_per_step,
            "samples": self.samples,
            "unreliable": self.unreliable,
            "unblocked": self.unblocked,
            "probe_bytes_per_second": self.probe_bytes_per_second,
            "probe_s": self.probe_s,
        }


def pair_messages(events: pd.DataFrame, *, uncertainty_ns: Mapping[int, int]) -> pd.DataFrame:
    """Return one row per message whose send and receive were both recorded.

    Args:
        events: Aligned events of one attempt.
        uncertainty_ns: Clock uncertainty of each rank. Rank 0 needs none; of another rank that is missing here it is unknown how far its
            clock is off, so none of its transfers is reliable.

    Returns:
        Columns replica, step, micro_batch, src_stage, dst_stage, src_rank, dst_rank, bytes, send_start_ns, post_ns, recv_start_ns,
        recv_end_ns, wait_s, transfer_s, blocked, reliable.
    """
    sends = _ends(events, Op.SEND, {"stage": "src_stage", "peer": "dst_stage", "rank": "src_rank", "start_ns": "send_start_ns"}, ["bytes"])
    receives = _ends(
        events,
        Op.RECV,
        {"peer": "src_stage", "stage": "dst_stage", "rank": "dst_rank", "start_ns": "recv_start_ns", "end_ns": "recv_end_ns"},
        ["bytes", "flags"],
    ).rename(columns={"bytes": "recv_bytes"})
    posts = _ends(events, Op.RECV_POST, {"peer": "src_stage", "stage": "dst_stage", "start_ns": "post_ns"}, [])
    pairs = sends.merge(receives, on=_KEY, how="inner").merge(posts, on=_KEY, how="left")
    pairs["bytes"] = pairs["bytes"].where(pairs["bytes"] > 0, pairs.pop("recv_bytes"))
    # A receive that was never seen to be posted was posted no later than its wait began.
    pairs["post_ns"] = pairs["post_ns"].fillna(pairs["recv_start_ns"]).astype("int64")
    ready = np.maximum(pairs["send_start_ns"], pairs["post_ns"])
    pairs["wait_s"] = (np.minimum(ready, pairs["recv_end_ns"]) - pairs["recv_start_ns"]).clip(lower=0) / 1e9
    pairs["transfer_s"] = (pairs["recv_end_ns"] - ready) / 1e9
    waited_ns = (pairs["recv_end_ns"] - pairs["recv_start_ns"]).to_numpy()
    pairs["blocked"] = saw_arrival(waited_ns=waited_ns, took_ns=(pairs["recv_end_ns"] - ready).to_numpy())
    known_ns = {0: 0.0, **{rank: float(ns) for rank, ns in uncertainty_ns.items()}}
    unsure_ns = sum(pairs[end].map(known_ns).fillna(np.inf) for end in ("src_rank", "dst_rank"))
    took_ns = pairs["transfer_s"] * 1e9
    seen = (pairs.pop("flags") & int(Flag.TRANSFER_UNSEEN)) == 0
    pairs["reliable"] = pairs["blocked"] & seen & (took_ns > 0) & (took_ns >= RELIABLE_UNCERTAINTIES * unsure_ns)
    return pairs


def measure_links(steady: SteadySteps, probes: pd.DataFrame, *, uncertainty_ns: Mapping[int, int]) -> tuple[LinkMeasure, ...]:
    """Return a measure per direction of each stage border, ordered by source and destination stage.

    Args:
        steady: The usable steps.
        probes: PROBE events of the run; they may lie outside every step.
        uncertainty_ns: Clock uncertainty of each rank.
    """
    pairs = pair_messages(steady.events, uncertainty_ns=uncertainty_ns)
    speeds = _probe_speeds(probes)
    links = []
    for (src, dst), rows in groups_of(pairs, "src_stage", "dst_stage"):
        good = rows[rows["reliable"]]
        probe_speed, probe_s = speeds.get((src, dst), (None, None))
        links.append(
            LinkMeasure(
                src_stage=src,
                dst_stage=dst,
                kind="activation" if dst > src else "gradient",
                bytes_per_message=float(rows["bytes"].median()),
                messages=len(rows),
                transfer=interval_of(good["transfer_s"].to_numpy()) if len(good) else None,
                throughput=interval_of((good["bytes"] / good["transfer_s"]).to_numpy()) if len(good) else None,
                wait_s_per_step=float(rows["wait_s"].sum() / max(steady.count, 1)),
                samples=len(good),
                unreliable=int((rows["blocked"] & ~rows["reliable"]).sum()),
                unblocked=int((~rows["blocked"]).sum()),
                probe_bytes_per_second=probe_speed,
                probe_s=probe_s,
            )
        )
    return tuple(links)


def _ends(events: pd.DataFrame, op: Op, names: dict[str, str], more: list[str]) -> pd.DataFrame:
    rows = events[events["op"] == int(op)].rename(columns=names)
    return rows[[*_KEY, *(n for n in names.values() if n not in _KEY), *more]].drop_duplicates(_KEY, keep="last")


def _probe_speeds(probes: pd.DataFrame) -> dict[tuple[int, int], tuple[float | None, float | None]]:
    """Map (source, destination) to the probe's throughput in bytes per second and its median duration in seconds."""
    rows = probes[probes["end_ns"] > probes["start_ns"]]
    speeds: dict[tuple[int, int], tuple[float | None, float | None]] = {}
    for (src, dst), group in groups_of(rows, "stage", "peer"):
        seconds = duration_s(group)
        # The largest payload says most about bandwidth; small ones measure latency.
        largest = group["bytes"] == group["bytes"].max()
        speeds[src, dst] = float((group["bytes"] / seconds)[largest].median()), float(seconds.median())
    return speeds
