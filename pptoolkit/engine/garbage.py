"""Python's garbage collector, kept from halting one rank and, through it, all of them."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def long_lived_objects_spared() -> Iterator[None]:
    """Leave what lives now out of the collections inside the block.

    A full collection walks every object of every imported module: more than a tenth of a second with torch. Each rank comes
    to it at a moment of its own, and the others wait. What is made inside the block is collected as ever.
    """
    if gc.get_freeze_count():  # the application has settled this itself
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
