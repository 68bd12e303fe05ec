import time

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

from pptoolkit.engine.backward import SplitBackward
from pptoolkit.errors import ConfigError
from pptoolkit.models import sleeping, sleeping_layers


@pytest.fixture
def slept(monkeypatch):
    """The times that were asked for, in order; nothing really sleeps."""
    asked = []
    monkeypatch.setattr(sleeping, "sleep_precisely", asked.append)
    return asked


def build(forward_s, backward_s, **settings):
    return nn.Sequential(*(layer.build(0) for layer in sleeping_layers(forward_s, backward_s, **settings)))


def test_each_layer_sleeps_its_own_times_forward_in_order_and_backward_in_reverse(slept):
    model = build([0.1, 0.2, 0.3], [1.0, 2.0, 3.0])
    model(torch.randn(4, 8)).sum().backward()
    assert slept == [0.1, 0.2, 0.3, 3.0, 2.0, 1.0]


def test_a_first_layer_whose_input_needs_no_gradient_has_a_backward_all_the_same(slept):
    build([0.1], [1.0])(torch.randn(4, 8)).sum().backward()
    assert slept == [0.1, 1.0]


def test_frozen_layers_before_the_first_trained_one_have_no_backward(slept):
    model = build([0.1, 0.2], [1.0, 2.0])
    model[0].requires_grad_(False)
    model(torch.randn(4, 8)).sum().backward()
    assert slept == [0.1, 0.2, 2.0]


def test_evaluation_sleeps_forward_only(slept):
    model = build([0.1], [1.0])
    with torch.no_grad():
        model(torch.randn(4, 8))
    assert slept == [0.1]


def test_sleeping_is_the_identity_for_outputs_and_gradients(slept):
    model = build([0.1, 0.2], [1.0, 2.0], width=4, dtype=torch.float64)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.equal(model(x), torch.tanh(model[1].linear(torch.tanh(model[0].linear(x)))))
    assert torch.autograd.gradcheck(model, x)
    model(x).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_shapes_are_inferred_with_fake_tensors_without_sleeping(slept):
    model = build([0.1, 0.2], [1.0, 2.0])
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        state = {name: mode.from_tensor(p) for name, p in model.named_parameters()}
        output = functional_call(model, state, (torch.empty(5, 8, requires_grad=True),))
        assert output.shape == (5, 8)
        assert output.requires_grad
        output.sum().backward()
    assert slept == []


def test_the_meta_device_does_not_sleep(slept):
    model = build([0.1], [1.0]).to("meta")
    model(torch.empty(5, 8, device="meta")).sum().backward()
    assert slept == []


def test_the_weight_part_sleeps_where_the_gradient_of_the_weights_is_computed(slept):
    model = build([0.1, 0.2], [1.0, 2.0], weight_s=[0.25, 0.5])
    x = torch.randn(4, 8, requires_grad=True)
    y = model(x).sum()
    slept.clear()
    torch.autograd.grad(y, x, retain_graph=True)
    assert slept == [1.5, 0.75]
    slept.clear()
    y.backward()
    assert slept == [1.5, 0.5, 0.75, 0.25]


def test_a_split_backward_sleeps_each_part_where_it_belongs(slept):
    model = build([0.1, 0.2], [1.0, 2.0], weight_s=[0.25, 0.5])
    x = torch.randn(4, 8, requires_grad=True)
    split = SplitBackward([model(x)], [torch.ones(4, 8)], [x], list(model.parameters()))
    slept.clear()
    split.input_part()
    assert slept == [1.5, 0.75]
    slept.clear()
    split.weight_part()
    assert sorted(slept) == [0.25, 0.5]


def test_a_frozen_layer_does_not_sleep_its_weight_part(slept):
    model = build([0.1], [1.0], weight_s=[0.25]).requires_grad_(False)
    model(torch.randn(4, 8, requires_grad=True)).sum().backward()
    assert slept == [0.1, 0.75]


@pytest.mark.parametrize("seconds", [0.0, 0.00005, 0.003])
def test_a_sleep_is_never_too_short(seconds):
    for _ in range(20):
        start = time.perf_counter()
        sleeping.sleep_precisely(seconds)
        assert time.perf_counter() - start >= seconds


@pytest.mark.parametrize("weight_s", [[0.1], [-0.1, 0.1], [0.1, 0.3]])
def test_weight_parts_that_do_not_fit_their_backwards_are_refused(weight_s):
    with pytest.raises(ConfigError, match="does not fit backward_s"):
        sleeping_layers([0.1, 0.1], [0.2, 0.2], weight_s=weight_s)


@pytest.mark.parametrize(
    ("forward_s", "backward_s", "message"),
    [([0.1], [0.1, 0.2], "has 1 times and backward_s 2"), ([], [], "has 0 times"), ([0.1], [-0.1], "negative time")],
)
def test_times_that_make_no_layers_are_refused(forward_s, backward_s, message):
    with pytest.raises(ConfigError, match=message):
        sleeping_layers(forward_s, backward_s)
