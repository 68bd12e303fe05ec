"""Colours that stay apart, also for eyes that see fewer of them."""

import itertools

import numpy as np
import pytest

from dashboard.charts.palette import OP_STYLES, STATE_COLORS, STATE_LABELS
from pptoolkit.telemetry.accounting import State
from pptoolkit.telemetry.events import Op

# On linear RGB, severity 1.0. Source: Machado, Oliveira, Fernandes,
# "A physiologically-based model for simulation of color vision deficiency", 2009.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
}
_NEIGHBOURS = (Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT, Op.OPTIMIZER)


def lab(color: str, vision: np.ndarray) -> np.ndarray:
    """CIE L*a*b* (D65) of a colour as it is seen."""
    srgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(vision @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = (to_xyz @ seen) / np.array([0.95047, 1.0, 1.08883])
    f = [t ** (1 / 3) if t > (6 / 29) ** 3 else t / (3 * (6 / 29) ** 2) + 4 / 29 for t in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
def test_ops_that_stand_next_to_each_other_are_told_apart(vision: str) -> None:
    for a, b in itertools.combinations(_NEIGHBOURS, 2):
        distance = float(np.linalg.norm(lab(OP_STYLES[a].color, VISION[vision]) - lab(OP_STYLES[b].color, VISION[vision])))
        assert distance > 20, f"{a.name} and {b.name} are {distance:.0f} apart under {vision}"


@pytest.mark.parametrize("op", [op for op, style in OP_STYLES.items() if style.letter])
def test_the_number_inside_a_bar_can_be_read(op: Op) -> None:
    def luminance(color: str) -> float:
        srgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    light, dark = sorted((luminance(OP_STYLES[op].color), luminance(OP_STYLES[op].ink)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_every_part_of_the_accounting_has_a_name_and_a_color() -> None:
    assert set(STATE_LABELS) == set(STATE_COLORS) == {str(state) for state in State}
