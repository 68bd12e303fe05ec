"""Cuts one step away from others: where a search goes next. Pure."""

from collections.abc import Iterator

_SHIFTS = (-2, -1, 1, 2)


def neighbours(cuts: tuple[int, ...], layers: int) -> Iterator[tuple[int, ...]]:
    """Yield cuts with one cut, or two neighbouring ones together, shifted by one or two layers; every stage keeps at least one."""
    for place, cut in enumerate(cuts):
        lower = cuts[place - 1] if place else 0
        upper = cuts[place + 1] if place + 1 < len(cuts) else layers
        for shift in _SHIFTS:
            if lower < cut + shift < upper:
                yield (*cuts[:place], cut + shift, *cuts[place + 1 :])
    for shift in _SHIFTS:  # two neighbouring cuts together: a whole stage moves along the model
        for place in range(len(cuts) - 1):
            moved = (*cuts[:place], cuts[place] + shift, cuts[place + 1] + shift, *cuts[place + 2 :])
            if all(a < b for a, b in zip((0, *moved), (*moved, layers), strict=True)):
                yield moved
