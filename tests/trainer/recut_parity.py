"""Comparing a training whose layers moved with one whose layers stayed."""

import functools
from collections.abc import Mapping
from typing import Any

import torch

ALIKE = ("losses", "norms", "evaluation", "rates")  # what every rank knows


def merge(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Join what the ranks hold; a tied parameter, its state included, is the same wherever it is."""
    merged: dict[str, Any] = {key: answers[0][key] for key in ALIKE}
    for answer in answers:
        assert {key: answer[key] for key in ALIKE} == {key: answers[0][key] for key in ALIKE}
    for key in ("parameters", "buffers", "state"):
        merged[key] = {}
        for answer in answers:
            for name, value in answer[key].items():
                assert merged[key].setdefault(name, value) == value, f"ranks differ in {key} of {name}"
    return merged


def assert_same(got: Any, wanted: Any, where: str = "") -> None:
    if isinstance(wanted, Mapping):
        assert sorted(got) == sorted(wanted), where
        for key in wanted:
            assert_same(got[key], wanted[key], f"{where}.{key}")
    else:
        close = functools.partial(torch.testing.assert_close, rtol=1e-9, atol=1e-13, msg=where)
        close(torch.tensor(got), torch.tensor(wanted))
