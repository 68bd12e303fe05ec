"""Runs of other trainers, read as ours: from a trace to a run directory that every command and page can show. Torch-free."""

from pptoolkit.foreign.production import import_trace

__all__ = ["import_trace"]
