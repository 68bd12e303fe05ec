"""Published bubble ratios, for equal stages and free links: what simulated and measured bubbles are held against. Pure."""

from pptoolkit.errors import ScheduleError


def published_bubble_ratio(
    name: str,
    *,
    ranks: int,
    micro_batches: int,
    stages: int | None = None,
    forward_s: float = 1.0,
    backward_input_s: float = 1.0,
    backward_weight_s: float = 1.0,
) -> float:
    """Return the share of the ranks' time that a schedule leaves idle, in [0, 1], by the formula of its source.

    With ``p`` ranks, ``m`` micro-batches, ``v`` stages a rank, and F, I, W the times of one stage (B = I + W):

    - gpipe, 1f1b, forward with one stage a rank: ``(p-1) / (m+p-1)`` (Huang et al. 2019; Narayanan et al. 2021, section 2.2.1).
    - interleaved-1f1b and looped-bfs, from ``p`` micro-batches on: idle over ideal time ``(p-1) / (v m)``
      (Narayanan et al. 2021, section 2.2.2; Lamy-Poirier 2023).
    - zb-h1, from ``p`` micro-batches on: idle time ``(p-1) (F+I-W)``, a third of 1F1B's where F = I = W; exact while I is not longer
      than F (Qi et al., "Zero Bubble Pipeline Parallelism", 2024, section 2).
    - zbv, from ``2p-1`` micro-batches on and where F = I = W: 0 as steps follow each other and ranks run ahead
      (Qi et al., "Pipeline Parallelism with Controllable Memory", 2024).

    Args:
        name: A schedule's name.
        ranks: Pipeline ranks.
        micro_batches: Micro-batches per step.
        stages: Stages; None: as many as the schedule needs at least.
        forward_s: Time of a stage's F.
        backward_input_s: Time of a stage's I.
        backward_weight_s: Time of a stage's W.

    Raises:
        ScheduleError: If there is no published formula for this schedule and these numbers.
    """
    p, m = ranks, micro_batches
    v = 2 if stages is None else stages // ranks
    total_s = forward_s + backward_input_s + backward_weight_s
    if name in ("gpipe", "1f1b") or (name == "forward" and stages in (None, ranks)):
        return (p - 1) / (m + p - 1)
    if name in ("interleaved-1f1b", "looped-bfs") and m >= p:
        return _share((p - 1) / (v * m))
    if name == "zb-h1" and m >= p:
        return _share((p - 1) * (forward_s + backward_input_s - backward_weight_s) / (m * total_s))
    if name == "zbv" and m >= 2 * p - 1 and forward_s == backward_input_s == backward_weight_s:
        return 0.0
    raise ScheduleError(
        f"no bubble formula is published for schedule {name!r} with {p} ranks, {m} micro-batches, F={forward_s}, I={backward_input_s}, "
        f"W={backward_weight_s}; simulate it with equal stages instead (pptoolkit.simulator.schedule_bubble_ratio)"
    )


def _share(idle_over_ideal: float) -> float:
    """Turn idle time over ideal time into idle time over the step's time."""
    return idle_over_ideal / (1 + idle_over_ideal)
