"""Colours and names of ops and of the accounting's parts: the same in the Gantt, in every chart and in every legend.

The hues are taken from the qualitative sets of Okabe and Ito and of Paul Tol. The pairs that stand next to each other in a
pipeline (forward and backward, backward and its two halves) also differ in lightness, so that they stay apart in grey.
"""

from dataclasses import dataclass

from pptoolkit.telemetry.events import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class OpStyle:
    """How one op looks.

    Args:
        label: What a person reads.
        letter: Drawn before the micro-batch number inside a bar; empty: none.
        color: Hexadecimal RGB, the same on light and dark pages.
        ink: Colour of text on top of it.
        thin: Drawn as a thin line at the foot of the row, because the rank waits or only hands something over.
    """

    label: str
    letter: str
    color: str
    ink: str = "#ffffff"
    thin: bool = False


OP_STYLES: dict[Op, OpStyle] = {
    Op.FORWARD: OpStyle(label="forward", letter="F", color="#0072b2"),
    Op.BACKWARD: OpStyle(label="backward", letter="B", color="#e69f00", ink="#1c1300"),
    Op.BACKWARD_INPUT: OpStyle(label="backward, input", letter="I", color="#f7dc94", ink="#1c1300"),
    Op.BACKWARD_WEIGHT: OpStyle(label="backward, weight", letter="W", color="#a65400"),
    Op.RECV: OpStyle(label="wait to receive", letter="", color="#cc79a7", thin=True),
    Op.SEND: OpStyle(label="send", letter="", color="#56b4e9", thin=True),
    Op.SEND_WAIT: OpStyle(label="wait to send", letter="", color="#8a5aa8", thin=True),
    Op.REDUCE: OpStyle(label="collective (with waiting for other ranks)", letter="", color="#882255", thin=True),
    Op.OPTIMIZER: OpStyle(label="optimizer", letter="", color="#009e73"),
    Op.DATA: OpStyle(label="data", letter="", color="#999933"),
    Op.CHECKPOINT: OpStyle(label="checkpoint", letter="", color="#44aa99", ink="#001c17"),
    Op.EVAL: OpStyle(label="evaluation", letter="", color="#332288"),
}

BUBBLE_LABEL = "bubble (could compute, does not)"
BUBBLE_COLOR = "#b9b9bd"

# The accounting's parts, in the order in which they are stacked: work first, then waiting, then what is left over.
STATE_LABELS: dict[str, str] = {
    "compute": "compute",
    "optimizer": "optimizer",
    "collective": "collective",
    "data": "data",
    "checkpoint": "checkpoint",
    "host": "host (schedule and Python)",
    "recv_wait": "wait to receive",
    "send_wait": "wait to send",
    "unattributed": "unattributed",
}
STATE_COLORS: dict[str, str] = {
    "compute": OP_STYLES[Op.FORWARD].color,
    "optimizer": OP_STYLES[Op.OPTIMIZER].color,
    "collective": OP_STYLES[Op.REDUCE].color,
    "data": OP_STYLES[Op.DATA].color,
    "checkpoint": OP_STYLES[Op.CHECKPOINT].color,
    "host": "#6f6f7a",
    "recv_wait": OP_STYLES[Op.RECV].color,
    "send_wait": OP_STYLES[Op.SEND_WAIT].color,
    "unattributed": BUBBLE_COLOR,
}

# Why a bubble is there, in the order of pptoolkit.analysis.causes. Chosen so that every two stay apart for the colour-blind too.
CAUSE_LABELS: dict[str, str] = {
    "schedule": "the schedule itself",
    "imbalance": "stages not alike",
    "jitter": "jitter and stragglers",
    "link": "links",
    "data": "data",
    "host": "host (schedule and Python)",
    "step_end": "optimizer, collectives, checkpoint",
    "unexplained": "unexplained",
}
CAUSE_COLORS: dict[str, str] = {
    "schedule": BUBBLE_COLOR,
    "imbalance": "#b2182b",
    "jitter": "#f0e442",
    "link": OP_STYLES[Op.SEND].color,
    "data": OP_STYLES[Op.DATA].color,
    "host": "#4a4a55",
    "step_end": OP_STYLES[Op.OPTIMIZER].color,
    "unexplained": "#5e3c99",
}

# What a rank's latest sign of life says: waiting has the colour of waiting everywhere else.
RANK_COLORS: dict[str, str] = {
    "computes": OP_STYLES[Op.FORWARD].color,
    "between ops": OP_STYLES[Op.SEND].color,
    "waits": OP_STYLES[Op.RECV].color,
    "silent": "#e69f00",
    "not seen": "#b2182b",
    "ended": "#8f8f99",
}

# Text outside of bars, on a light and on a dark page.
INK = {"light": "#1f2328", "dark": "#e6e8eb"}

# Two stages that touch on the layer strip must differ; the cycle is long enough that neighbours never repeat.
STAGE_COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#a65400", "#8a5aa8", "#999933")
RUN_COLORS = ("#1f83c6", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#999933")


def ink_on(color: str) -> str:
    """Return black or white, whichever can be read better on ``color``."""
    linear = [(int(color[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#1c1300" if luminance > 0.18 else "#ffffff"


def stage_color(stage: int) -> str:
    """Return the colour of a stage, repeating after eight."""
    return STAGE_COLORS[stage % len(STAGE_COLORS)]
