"""Simulator: a schedule and its costs in, a timeline, step time, bubble and memory high-water out. Pure: no processes, no clock."""

from pptoolkit.simulator.costs import Costs, MemoryCosts, equal_costs
from pptoolkit.simulator.events import EventSettings, to_events
from pptoolkit.simulator.program import Program
from pptoolkit.simulator.step import SimulatedOp, SimulatedStep, schedule_bubble_ratio, simulate, simulate_steps

__all__ = [
    "Costs",
    "EventSettings",
    "MemoryCosts",
    "Program",
    "SimulatedOp",
    "SimulatedStep",
    "equal_costs",
    "schedule_bubble_ratio",
    "simulate",
    "simulate_steps",
    "to_events",
]
