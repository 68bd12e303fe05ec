import pytest
import torch
from torch import nn

from pptoolkit.errors import ConfigError
from pptoolkit.models import mlp_layers, squared_error


def build(**settings):
    return nn.Sequential(*(layer.build(3) for layer in mlp_layers(6, 4, dtype=torch.float64, **settings)))


def test_layers_have_names_and_one_width_throughout():
    assert [layer.name for layer in mlp_layers(6, 3)] == ["layer00", "layer01", "layer02"]
    assert build()(torch.randn(5, 6, dtype=torch.float64)).shape == (5, 6)


def test_gradients_are_exact_in_float64():
    model = build()
    assert torch.autograd.gradcheck(model, torch.randn(2, 6, dtype=torch.float64, requires_grad=True))


def test_no_two_layers_start_alike():
    weights = [layer.linear.weight for layer in build()]
    assert all(not torch.equal(a, b) for i, a in enumerate(weights) for b in weights[:i])


def test_dropout_drops_in_training_only():
    model, x = build(dropout=0.5), torch.randn(5, 6, dtype=torch.float64)
    assert (model(x) == 0).any()
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))
    assert not (model(x) == 0).any()


def test_the_loss_is_the_mean_over_all_elements():
    output, target = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 4.0]])
    assert squared_error(output, target).item() == 2.5


@pytest.mark.parametrize(("width", "depth", "dropout"), [(0, 1, 0.0), (1, 0, 0.0), (1, 1, 1.0), (1, 1, -0.1)])
def test_numbers_out_of_range_are_refused(width, depth, dropout):
    with pytest.raises(ConfigError):
        mlp_layers(width, depth, dropout=dropout)
