"""Cuts as people write them. Pure."""


def read_cuts(text: str) -> tuple[int, ...]:
    """Read ``"3, 6 9"`` or ``"[3, 6, 9]"``.

    Raises:
        ValueError: If there is something else than whole numbers.
    """
    words = text.replace("[", " ").replace("]", " ").replace(",", " ").split()
    wrong = [word for word in words if not (word.isascii() and word.isdigit())]
    if wrong:
        raise ValueError(f"{wrong[0]!r} is no whole number; write the cuts like 3, 6, 9")
    return tuple(int(word) for word in words)
