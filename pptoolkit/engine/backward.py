"""The backward of one stage and micro-batch in two parts: first what the previous stage waits for, later the weights' share.

    loss --- N1 ------- tanh --- N2 ------- input        I runs this line and notes what arrives at N1 and N2
              `- weight           `- weight              W starts from N1 and N2 and runs down to the weights only

torch's own split (tried on 2.13) loses gradients without a word where a weight cannot be reached that way: with a frozen
stage before it, or where a weight leads to an output that depends on no input. Here every weight of the graph ends up in one
group of the cut below, or the whole backward is left to W.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Gradients = tuple[torch.Tensor | None, ...]


class SplitBackward:
    """One backward, cut between input part and weight part.

    Args:
        outputs: Outputs of the stage that need a gradient.
        gradients: Their gradients; None for a scalar loss.
        inputs: Inputs of the stage.
        weights: Parameters of the stage that need a gradient.
    """

    def __init__(
        self,
        outputs: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
        inputs: Sequence[torch.Tensor],
        weights: Sequence[torch.Tensor],
    ) -> None:
        self._outputs = list(outputs)
        self._gradients = [torch.ones_like(t) if g is None else g for t, g in zip(outputs, gradients, strict=True)]
        self._inputs, self._weights = list(inputs), list(weights)
        self._groups: list[_Group] = []
        # Without an input that needs a gradient nobody waits, and there is no line to cut along.
        self.all_in_weight_part = not any(t.requires_grad for t in inputs)

    def input_part(self) -> Gradients:
        """Return the gradients of the inputs; None where one needs none, or got none."""
        wanted = [t for t in self._inputs if t.requires_grad]
        if self.all_in_weight_part or not self._outputs:
            return (None,) * len(self._inputs)
        self._groups = _cut(self._outputs, self._gradients, wanted, self._weights)
        hooks = [head.register_prehook(group.noting(head)) for group in self._groups for head in group.heads]
        try:
            found = iter(torch.autograd.grad(self._outputs, wanted, self._gradients, retain_graph=bool(self._groups), allow_unused=True))
        finally:
            for hook in hooks:
                hook.remove()
        # The graph above the cut, and all that it keeps, goes with the last reference to an output.
        gradients = tuple(next(found) if t.requires_grad else None for t in self._inputs)
        self._outputs, self._gradients, self._inputs = [], [], []
        return gradients

    def weight_part(self) -> None:
        """Add the gradients of the weights to their ``grad``."""
        if self.all_in_weight_part:
            if self._outputs and self._weights:
                torch.autograd.backward(self._outputs, self._gradients)
        else:
            for group in self._groups:
                group.run()
        self._outputs, self._gradients, self._groups = [], [], []


class _Group:
    """Weights that can only be run together, and the nodes of the graph from which they get their gradients.

    Args:
        heads: Nodes on the line from outputs to inputs where the way to the weights branches off.
        ends: Outputs that lead to the weights and to no input, with their gradients.
    """

    def __init__(self, weights: list[torch.Tensor], heads: set[Node], ends: list[tuple[GradientEdge, torch.Tensor]]) -> None:
        self.weights, self.heads, self.ends = weights, heads, ends
        self._arrived: dict[Node, tuple[torch.Tensor | None, ...]] = {}

    def noting(self, head: Node) -> Any:
        def note(gradients: tuple[torch.Tensor | None, ...]) -> None:
            self._arrived[head] = gradients

        return note

    def run(self) -> None:
        starts = [
            (GradientEdge(head, i), gradient)
            for head, gradients in self._arrived.items()
            for i, gradient in enumerate(gradients)
            if gradient is not None
        ] + self.ends
        if not starts:
            return
        hooks = []
        if len(self._arrived) > 1:
            # One head may lie on the way from another: what it noted is complete already, so nothing may be added to it.
            hooks = [head.register_prehook(lambda _, noted=noted: noted) for head, noted in self._arrived.items()]
        try:
            # The graph is kept because another group may start from nodes between two heads of this one.
            torch.autograd.backward(
                [edge for edge, _ in starts], [gradient for _, gradient in starts], inputs=self.weights, retain_graph=True
            )
        finally:
            for hook in hooks:
                hook.remove()


def _cut(
    outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
) -> list[_Group]:
    """Return the groups of weights, each with every node and output that gives it a gradient."""
    edges = [get_gradient_edge(output) for output in outputs]
    users = _users([edge.node for edge in edges])
    line = _above([get_gradient_edge(t).node for t in inputs], users, stop=set())[0]
    ends: dict[Node, list[tuple[GradientEdge, torch.Tensor]]] = defaultdict(list)
    for edge, gradient in zip(edges, gradients, strict=True):
        if edge.node not in line:
            ends[edge.node].append((edge, gradient))
    groups: list[tuple[list[torch.Tensor], set[Node]]] = []  # (weights, heads and ends)
    for weight in weights:
        node = get_gradient_edge(weight).node
        if node not in users:
            continue  # not used in this micro-batch
        inside, heads = _above([node], users, stop=line)
        starts = heads | (inside & ends.keys())
        joined, apart = [weight], []
        for others, nodes in groups:
            if starts.isdisjoint(nodes):
                apart.append((others, nodes))
            else:
                joined, starts = others + joined, starts | nodes
        groups = [*apart, (joined, starts)]
    return [_Group(members, starts & line, [end for node in starts - line for end in ends[node]]) for members, starts in groups]


def _users(roots: Sequence[Node]) -> dict[Node, list[Node]]:
    """Map every node under ``roots`` to the nodes that use its output."""
    users: dict[Node, list[Node]] = {root: [] for root in roots}
    waiting = list(users)
    while waiting:
        node = waiting.pop()
        for child, _ in node.next_functions:
            if child is None:
                continue
            if child not in users:
                users[child] = []
                waiting.append(child)
            users[child].append(node)
    return users


def _above(nodes: Sequence[Node], users: dict[Node, list[Node]], *, stop: set[Node]) -> tuple[set[Node], set[Node]]:
    """Return ``nodes`` and all nodes that use them, up to those in ``stop``; and the nodes of ``stop`` that were met."""
    found = {node for node in nodes if node in users}
    met: set[Node] = set()
    waiting = list(found)
    while waiting:
        for user in users[waiting.pop()]:
            if user in stop:
                met.add(user)
            elif user not in found:
                found.add(user)
                waiting.append(user)
    return found, met
