"""Say in one sentence what a new plan changes. Pure: layer names and stages in, text out."""

from collections.abc import Sequence
from itertools import groupby

from pptoolkit.errors import counted
from pptoolkit.plan import Plan

_MOST_MOVES = 3


def describe_moves(names: Sequence[str], layer_s: Sequence[float], old: Sequence[range], new: Sequence[range]) -> str:
    """Return which layers move between which stages, and what the stages take per micro-batch before and after.

    Args:
        names: Layer names.
        layer_s: Compute of each layer, per micro-batch.
        old: Layers of each stage before.
        new: Layers of each stage after.
    """
    before, after = (_owners(stages) for stages in (old, new))
    moved = [(before[i], after[i], i) for i in range(len(names)) if before[i] != after[i]]
    groups = [(key, [i for *_, i in rows]) for key, rows in groupby(moved, key=lambda move: move[:2])]
    times = [sum(layer_s[i] for i in layers) for layers in old]
    slowest = max(range(len(times)), key=times.__getitem__)
    new_slowest = max(sum(layer_s[i] for i in layers) for layers in new)
    if len(groups) > _MOST_MOVES:
        what = f"move {len(moved)} layers so that the stages begin at layers {', '.join(str(layers.start) for layers in new)}"
    else:
        what = " and ".join(
            f"{'move ' if not k else ''}{_list([names[i] for i in rows])} from stage {a} to stage {b}"
            for k, ((a, b), rows) in enumerate(groups)
        )
    if len(groups) == 1:
        (source, target), _ = groups[0]
        why = f"stage {source} spends {_ms(times[source])} a micro-batch, stage {target} {_ms(times[target])}"
    else:
        why = f"stage {slowest} spends {_ms(times[slowest])} a micro-batch, the stages together {_ms(sum(times) / len(times))} on average"
    return f"{what}: {why}; the slowest stage falls to {_ms(new_slowest)}"


def _owners(stages: Sequence[range]) -> dict[int, int]:
    return {layer: stage for stage, layers in enumerate(stages) for layer in layers}


def _list(names: Sequence[str]) -> str:
    if len(names) > 4:
        return f"{names[0]} to {names[-1]}"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"


def describe_change(old: Plan, new: Plan) -> str:
    """Return what changes between two plans apart from which layers move; empty if nothing does."""
    parts = []
    if new.schedule != old.schedule:
        parts.append(f"run {new.schedule} instead of {old.schedule}")
    if new.replicas != old.replicas:
        parts.append(f"use {counted(new.replicas, 'replica')} instead of {old.replicas}")
    if new.stages != old.stages:
        parts.append(f"cut the model into {counted(new.stages, 'stage')} instead of {old.stages}")
    if new.micro_batches != old.micro_batches:
        parts.append(f"split the batch into {new.micro_batches} micro-batches instead of {old.micro_batches}")
    if new.recompute != old.recompute:
        listed = ", ".join(map(str, new.recompute[:6])) + (" and more" if len(new.recompute) > 6 else "")
        parts.append(f"recompute activations in stages {listed}" if new.recompute else "recompute nothing")
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"
