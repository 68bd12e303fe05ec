"""Where the checkout is that these tests look at from outside."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
