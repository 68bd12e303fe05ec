"""Schedules: what each rank computes in a step, and in which order. Pure: no tensors, no processes, no clock."""

from pptoolkit.schedule.actions import Action, ActionKind, Order, Schedule, format_order, parse_order
from pptoolkit.schedule.bubble import published_bubble_ratio
from pptoolkit.schedule.catalogue import SCHEDULES, TRAINING_SCHEDULES, build_schedule, check_trains
from pptoolkit.schedule.forward_only import FORWARD_ONLY, forward_schedule
from pptoolkit.schedule.table import format_csv, load_csv, parse_csv, schedule_from_orders
from pptoolkit.schedule.validation import validate

__all__ = [
    "FORWARD_ONLY",
    "SCHEDULES",
    "TRAINING_SCHEDULES",
    "Action",
    "ActionKind",
    "Order",
    "Schedule",
    "build_schedule",
    "check_trains",
    "format_csv",
    "format_order",
    "forward_schedule",
    "load_csv",
    "parse_csv",
    "parse_order",
    "published_bubble_ratio",
    "schedule_from_orders",
    "validate",
]
