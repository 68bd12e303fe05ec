"""Comparing what several ranks answered with one process."""

import functools
from typing import Any

import torch

from pptoolkit.models import mlp_layers, squared_error
from tests.trainer import cases, reference


def merge(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the ranks' layers; what several ranks know, replicas included, must be equal to the bit."""
    merged: dict[str, Any] = {key: answers[0][key] for key in ("losses", "norms", "skipped")}
    for answer in answers:
        assert {key: answer[key] for key in merged} == merged
    for key in ("gradients", "parameters", "buffers"):
        merged[key] = {}
        for answer in answers:
            for name, value in answer[key].items():
                assert merged[key].setdefault(name, value) == value, f"replicas differ in {key} of {name}"
    return merged


def one_process(*, samples: int = 16, tokens: bool = False, **named: Any) -> dict[str, Any]:
    """What plain PyTorch makes of the same batches."""
    data = cases.numbers(samples, tokens=tokens)
    layers = named.pop("layers", functools.partial(mlp_layers, cases.WIDTH, cases.DEPTH))()
    loss = cases.token_loss if tokens else squared_error
    batches = list(cases.in_order(data, samples))
    return reference.train(layers, batches, loss=loss, make_optimizer=cases.adam, **named)


def assert_same(got: dict[str, Any], wanted: dict[str, Any], *, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(torch.tensor(got["losses"]), torch.tensor(wanted["losses"]), rtol=tolerance, atol=0)
    for key in ("gradients", "parameters"):
        assert sorted(got[key]) == sorted(wanted[key])
        for name, value in wanted[key].items():
            close = functools.partial(torch.testing.assert_close, rtol=tolerance, atol=1e-10, msg=f"{key} of {name}")
            close(torch.tensor(got[key][name]), torch.tensor(value))
    if got["norms"][0] is not None:
        torch.testing.assert_close(torch.tensor(got["norms"]), torch.tensor(wanted["norms"]), rtol=tolerance, atol=0)
