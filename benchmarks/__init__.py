"""Timing claims, each a ratio measured side by side in one run. Start a script with ``python -m benchmarks.step``."""
