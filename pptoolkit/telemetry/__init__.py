"""Telemetry: what happened when, on every rank. Torch-free; never blocks and never kills the training that it watches.

The training thread talks to a :class:`Recorder`. Readers (analysis, dashboard, reports) start at a :class:`RunDirectory`
and an :class:`EventReader`. :mod:`pptoolkit.telemetry.session` ties the writing side together, one session per rank.
"""

from pptoolkit.telemetry.event_reader import EventReader
from pptoolkit.telemetry.event_writer import EventWriter
from pptoolkit.telemetry.events import Event, Flag, Op
from pptoolkit.telemetry.recorder import NullRecorder, Recorder
from pptoolkit.telemetry.run_directory import RunDirectory, list_runs
from pptoolkit.telemetry.run_info import Attempt, Endpoint, LayerFacts, RunInfo, RunStatus
from pptoolkit.telemetry.scalars import ScalarReader, StepSummary

__all__ = [
    "Attempt",
    "Endpoint",
    "Event",
    "EventReader",
    "EventWriter",
    "Flag",
    "LayerFacts",
    "NullRecorder",
    "Op",
    "Recorder",
    "RunDirectory",
    "RunInfo",
    "RunStatus",
    "ScalarReader",
    "StepSummary",
    "list_runs",
]
