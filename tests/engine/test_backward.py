"""The split backward gives every weight the gradient of a whole one, whatever the graph looks like."""

import pytest
import torch
from torch import Tensor, nn

from pptoolkit.engine.backward import SplitBackward
from tests.engine.models import VOCABULARY, WIDTH


class Tangled(nn.Module):
    """Weights used twice on the way from the input, beside it, and on both sides.

    x -- a -- *scale -- + -- norm -- *scale -- b -- b -- out @ table
                        |                                      |
    ids ------------- table ----- *2 (second output) -- c -- third output
    """

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.LayerNorm(WIDTH)
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.scale, self.unused = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        aside = self.table(ids) * 2
        h = torch.tanh(self.a(x)) * self.scale + self.table(ids)
        h = self.b(torch.tanh(self.b(self.norm(h) * self.scale)))
        return h @ self.table.weight.T, aside, self.c(aside)


def gradients(*, split: bool, used: tuple[int, ...], needs: bool, frozen: tuple[str, ...]) -> list[Tensor | None]:
    torch.manual_seed(0)
    model = Tangled().double()
    for name in frozen:
        getattr(model, name).requires_grad_(False)
    x = torch.randn(3, WIDTH, dtype=torch.float64).requires_grad_(needs)
    outputs = model(x, torch.tensor([0, 1, 1]))
    pairs = [(outputs[i], torch.randn_like(outputs[i])) for i in used if outputs[i].requires_grad]
    chosen, given = [t for t, _ in pairs], [g for _, g in pairs]
    weights = list(model.parameters())
    if not split:
        if chosen:
            torch.autograd.backward(chosen, given)
        return [x.grad, *(w.grad for w in weights)]
    parts = SplitBackward(chosen, given, [x], [w for w in weights if w.requires_grad])
    (of_x,) = parts.input_part()
    assert all(w.grad is None for w in weights), "the input part reached a weight"
    parts.weight_part()
    return [of_x, *(w.grad for w in weights)]


@pytest.mark.parametrize("frozen", [(), ("a",), ("table", "b"), ("a", "b", "c", "norm", "table", "scale")])
@pytest.mark.parametrize("needs", [True, False])
@pytest.mark.parametrize("used", [(0, 1, 2), (0,), (1, 2), (0, 2), ()])
def test_both_parts_together_equal_the_whole(used: tuple[int, ...], needs: bool, frozen: tuple[str, ...]) -> None:
    wanted = gradients(split=False, used=used, needs=needs, frozen=frozen)
    for got, want in zip(gradients(split=True, used=used, needs=needs, frozen=frozen), wanted, strict=True):
        assert (got is None) == (want is None)
        if got is not None:
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_the_weight_part_does_not_run_the_line_again() -> None:
    """The nodes between input and output run once, in the input part."""
    ran = 0

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            nonlocal ran
            ran += 1
            return gradient

    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    x = torch.randn(3, WIDTH, requires_grad=True)
    output = second(Counted.apply(torch.tanh(first(x))))  # type: ignore[no-untyped-call]
    parts = SplitBackward([output], [torch.ones_like(output)], [x], [*first.parameters(), *second.parameters()])
    parts.input_part()
    parts.weight_part()
    assert ran == 1
    assert first.weight.grad is not None
