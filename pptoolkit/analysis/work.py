"""More work or a slower device: what a rank's forward and backward, its layers and its replicas say.

A slow device slows everything on it by about the same factor; more work shows in a pass, in the number of layers, or on every replica.
Three kinds of evidence are asked in turn, and where none of them speaks nothing is claimed:

    replicas    the same stage on another replica is fast: it is the device
    layers      layers of the same kind (same parameters, same sizes) elsewhere run faster, forward and backward alike: the device;
                they run as fast: there are more of them, or heavier ones
    passes      forward and backward are longer by very different factors: work
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pptoolkit.analysis.bubbles import COMPUTE_CODES
from pptoolkit.analysis.grouping import duration_s
from pptoolkit.analysis.layer_costs import LayerCosts
from pptoolkit.analysis.regime import RegimeChange
from pptoolkit.analysis.steps import SteadySteps
from pptoolkit.telemetry.run_info import LayerFacts, RunInfo

SLOWER = 1.10  # a device this much slower is a slow device
_ALIKE = 1.35  # factors of forward and backward that one slow device can explain; layers of one kind that can be compared
_LEAST_S = 1e-4  # layers shorter than this are too short to compare devices by


@dataclass(frozen=True, slots=True)
class Contrast:
    """One pass of a rank beside the others' mean, in seconds a step."""

    own_s: float
    others_s: float

    @property
    def ratio(self) -> float:
        return self.own_s / self.others_s if self.others_s > 0 else float("inf") if self.own_s > 0 else 1.0

    def to_dict(self) -> dict[str, float]:
        return {"own_s": self.own_s, "others_s": self.others_s}


@dataclass(frozen=True, slots=True)
class DeviceEvidence:
    """``cause`` as in :data:`pptoolkit.analysis.finding.CAUSES`, and the sentence behind it."""

    cause: str
    sentence: str


def work_or_device(
    rank: int, info: RunInfo, forward: Contrast, backward: Contrast, *, layers: LayerCosts | None, changes: Sequence[RegimeChange]
) -> DeviceEvidence:
    """Say why a pipeline rank computes longer than the others; all its replicas do.

    Args:
        rank: Pipeline rank.
        info: The run.
        forward: The rank's forward beside the others'.
        backward: Likewise.
        layers: Layer costs; None where layers were not timed.
        changes: Regime changes of the run.
    """
    own = [c for c in changes if c.rank % (max(info.stage_to_rank) + 1) == rank and c.after_s > c.before_s]
    if own:
        return DeviceEvidence(
            "slower_device", f"it became {own[-1].size_ratio:.0%} slower at step {own[-1].step}, and work does not change in a run"
        )
    by_layers = _by_layers(rank, info, layers) if layers is not None and not layers.missing else None
    if by_layers is not None:
        return by_layers
    factors = (forward.ratio, backward.ratio)
    if max(factors) > _ALIKE * max(min(factors), 1e-9) or min(factors) < SLOWER:
        return DeviceEvidence(
            "more_work",
            f"its forward takes {factors[0]:.2f} times as long as the others' and its backward {factors[1]:.2f} times, "
            "and a slow device would slow both alike",
        )
    if info.replicas > 1:
        return DeviceEvidence("more_work", f"it is so on all {info.replicas} replicas, which run on different devices")
    return DeviceEvidence(
        "more_work_or_slower_device",
        "nothing in the run can be compared with it: no layer of the same kind elsewhere, and no other replica",
    )


def _by_layers(rank: int, info: RunInfo, costs: LayerCosts) -> DeviceEvidence | None:
    """Compare layers of the same kind; None where no kind is both on this rank and, with even times, elsewhere."""
    facts = {fact.name: fact for fact in info.layer_facts}
    owner = _owners(info)
    kinds: dict[tuple[object, ...], tuple[list[int], list[int]]] = {}
    for index, name in enumerate(info.layers):
        if name in facts:
            here, elsewhere = kinds.setdefault(_kind(facts[name]), ([], []))
            (here if owner[index] == rank else elsewhere).append(index)
    factors: list[tuple[float, float, float]] = []  # forward, backward, weight
    for here, elsewhere in kinds.values():
        times = [costs.layers[i].compute_s for i in elsewhere]
        if not here or not times or min(times) < _LEAST_S or max(times) > _ALIKE * min(times):
            continue
        own = [costs.layers[i].compute_s for i in here]
        if max(own) > _ALIKE * min(own):
            continue
        pair = [_ratio(costs, here, elsewhere, forward=forward) for forward in (True, False)]
        factors.append((pair[0], pair[1], sum(own)))
    if not factors:
        return None
    forward, backward, weight = (np.asarray(column) for column in zip(*factors, strict=True))
    f, b = float(np.average(forward, weights=weight)), float(np.average(backward, weights=weight))
    if min(f, b) > SLOWER and max(f, b) < _ALIKE * min(f, b):
        return DeviceEvidence(
            "slower_device", f"layers of the same kind take {f:.2f} times as long forward and {b:.2f} times backward as elsewhere"
        )
    if max(f, b) > SLOWER:
        word = "forward" if f > b else "backward"
        return DeviceEvidence(
            "more_work", f"its layers take {max(f, b):.2f} times as long {word} as the same kind elsewhere, but not both ways"
        )
    return DeviceEvidence("more_work", "layers of the same kind run as fast here as elsewhere, so it has more of them, or heavier ones")


def _ratio(costs: LayerCosts, here: list[int], elsewhere: list[int], *, forward: bool) -> float:
    def median(chosen: list[int]) -> float:
        return float(np.median([(costs.layers[i].forward if forward else costs.layers[i].backward).median for i in chosen]))

    base = median(elsewhere)
    return median(here) / base if base > 0 else 1.0


def _owners(info: RunInfo) -> list[int]:
    owners = [0] * len(info.layers)
    for stage, layers in enumerate(info.read_plan().stage_layers(len(info.layers))):
        for index in layers:
            owners[index] = info.stage_to_rank[stage]
    return owners


def _kind(fact: LayerFacts) -> tuple[object, ...]:
    letters = "".join(c for c in fact.name if not c.isdigit())
    return letters, fact.parameters, fact.parameter_bytes, fact.activation_bytes, fact.boundary_bytes


def typical_excess(steady: SteadySteps, rank: int, *, ranks: int) -> float:
    """Return how much longer a pipeline rank computes than the others do on average, as a ratio, where each op takes its median time.

    Args:
        steady: The usable steps.
        rank: Pipeline rank.
        ranks: Number of pipeline ranks.
    """
    rows = steady.events[steady.events["op"].isin(COMPUTE_CODES)]
    seconds = duration_s(rows).groupby([rows["rank"] % ranks, rows["stage"], rows["op"]]).agg(["median", "size"])
    work = (seconds["median"] * seconds["size"]).groupby(level=0).sum().reindex(range(ranks), fill_value=0.0)
    others = float(work.drop(rank).mean())
    return float(work[rank]) / others - 1.0 if others > 0 else 0.0
