"""Parameters that are one parameter, wherever the cuts put them.

On one rank a tied parameter is the owner's own. On two ranks each holds a copy: equal at the start, given the same gradient in
every step (the sum over all uses, added up by the owner in the order of the layers), and so equal to the bit ever after.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pptoolkit.engine.wiring import Tie, Wiring
from pptoolkit.errors import ConfigError


class TiedParameters:
    """The ties of a model as one rank sees them. Made on every rank at the same moment, for the values are exchanged.

    Args:
        wiring: The declared ties.
        layers: The layers that this rank has built, by index; tied parameters in them are replaced.
        layer_to_rank: Pipeline rank of each layer.
        rank: This rank in the pipeline.
        group_ranks: Global rank of each pipeline rank.

    Raises:
        ConfigError: If a tied parameter does not exist or has another shape or dtype than its owner; on every rank.
    """

    def __init__(
        self,
        wiring: Wiring,
        layers: Mapping[int, nn.Module],
        layer_to_rank: Sequence[int],
        *,
        rank: int,
        group_ranks: Sequence[int],
        group: Any = None,
    ) -> None:
        self._names, self._rank, self._group_ranks, self._group = wiring.names, rank, tuple(group_ranks), group
        self.owner_names: dict[str, str] = {}  # of every tied parameter that lives on this rank: name -> owner's name
        self._shared: list[tuple[nn.Parameter, list[int]]] = []  # owner or copy, and the ranks that hold one, the owner's first
        self.copies: list[nn.Parameter] = []  # of parameters that another rank owns
        if not wiring.ties:
            return
        facts = self._exchange_facts(wiring.ties, layers)
        for tie in wiring.ties:
            self._check(tie, facts)
        groups: dict[tuple[int, str], list[Tie]] = {}
        for tie in wiring.ties:
            groups.setdefault((tie.owner, tie.owner_parameter), []).append(tie)
        for (owner, name), ties in groups.items():
            frozen = not facts[owner, name][2]
            self._join(owner, name, ties, layers, layer_to_rank, frozen=frozen)
        self.refresh()

    def refresh(self) -> None:
        """Give every copy its owner's value, e.g. after parameters were loaded. Call it on every rank."""
        for parameter, ranks in self._shared:
            with torch.no_grad():
                if ranks[0] == self._rank:
                    for peer in ranks[1:]:
                        dist.send(parameter.detach().contiguous(), dst=self._group_ranks[peer], group=self._group)
                else:
                    value = torch.empty_like(parameter, memory_format=torch.contiguous_format)
                    dist.recv(value, src=self._group_ranks[ranks[0]], group=self._group)
                    parameter.copy_(value)

    def reduce(self) -> int:
        """Give owner and copies the sum of their gradients; once per step, on every rank. Return the bytes that were sent."""
        sent = 0
        for parameter, ranks in self._shared:
            if not parameter.requires_grad:
                continue
            if ranks[0] == self._rank:
                total = self._gather(parameter, ranks[1:])
                for peer in ranks[1:]:
                    sent += self._send(parameter, total, peer)
            else:
                sent += self._send(parameter, parameter.grad, ranks[0])
                total = self._receive(parameter, ranks[0])
            # The same strides on every rank: elementwise kernels may round differently on others.
            parameter.grad = None if total is None else total.contiguous()
        return sent

    def _gather(self, parameter: nn.Parameter, peers: Sequence[int]) -> torch.Tensor | None:
        total = parameter.grad
        for peer in peers:
            share = self._receive(parameter, peer)
            total = share if total is None else total if share is None else total + share
        return total

    def _send(self, parameter: nn.Parameter, gradient: torch.Tensor | None, peer: int) -> int:
        """Send a gradient, or that there is none: an unused parameter stays without, as in one process."""
        target = self._group_ranks[peer]
        dist.send(torch.tensor([gradient is not None]), dst=target, group=self._group)  # on the host: who reads it waits for no GPU
        if gradient is None:
            return 0
        dist.send(gradient.to(parameter.dtype).contiguous(), dst=target, group=self._group)
        return gradient.numel() * parameter.element_size()

    def _receive(self, parameter: nn.Parameter, peer: int) -> torch.Tensor | None:
        source = self._group_ranks[peer]
        used = torch.empty(1, dtype=torch.bool)
        dist.recv(used, src=source, group=self._group)
        if not used:
            return None
        gradient = torch.empty_like(parameter, memory_format=torch.contiguous_format, requires_grad=False)
        dist.recv(gradient, src=source, group=self._group)
        return gradient

    def _exchange_facts(self, ties: Sequence[Tie], layers: Mapping[int, nn.Module]) -> dict[tuple[int, str], Any]:
        """Return (shape, dtype, needs gradient) of every parameter that a tie names and that exists, from all ranks."""
        mine = {}
        for layer, name in {(t.layer, t.parameter) for t in ties} | {(t.owner, t.owner_parameter) for t in ties}:
            parameter = dict(layers[layer].named_parameters()).get(name) if layer in layers else None
            if parameter is not None:
                mine[layer, name] = (tuple(parameter.shape), parameter.dtype, parameter.requires_grad)
        gathered: list[Any] = [mine]
        if len(self._group_ranks) > 1:
            gathered = [None] * len(self._group_ranks)
            dist.all_gather_object(gathered, mine, group=self._group)
        return {key: fact for facts in gathered for key, fact in facts.items()}

    def _check(self, tie: Tie, facts: Mapping[tuple[int, str], Any]) -> None:
        tied, owner = self._name(tie.layer, tie.parameter), self._name(tie.owner, tie.owner_parameter)
        for name, key in ((tied, (tie.layer, tie.parameter)), (owner, (tie.owner, tie.owner_parameter))):
            if key not in facts:
                raise ConfigError(f"the tie of {tied} to {owner} names {name}, but layer {self._names[key[0]]!r} has no such parameter")
        (shape, dtype, _), (owner_shape, owner_dtype, _) = facts[tie.layer, tie.parameter], facts[tie.owner, tie.owner_parameter]
        if (shape, dtype) != (owner_shape, owner_dtype):
            raise ConfigError(
                f"{tied} of shape {list(shape)}, {dtype} is tied to {owner} of shape {list(owner_shape)}, {owner_dtype}; "
                "tied parameters must be alike: remove the tie or change one of the layers"
            )

    def _join(
        self,
        owner: int,
        owner_parameter: str,
        ties: Sequence[Tie],
        layers: Mapping[int, nn.Module],
        layer_to_rank: Sequence[int],
        *,
        frozen: bool,
    ) -> None:
        places = [(owner, owner_parameter), *sorted((t.layer, t.parameter) for t in ties)]
        here = [place for place in places if layer_to_rank[place[0]] == self._rank]
        ranks = list(dict.fromkeys(layer_to_rank[layer] for layer, _ in places))
        if not here:
            return
        first = layers[here[0][0]].get_parameter(here[0][1])
        for layer, name in here:
            self.owner_names[self._name(layer, name)] = self._name(owner, owner_parameter)
            path, _, last = name.rpartition(".")
            setattr(layers[layer].get_submodule(path), last, first)
        first.requires_grad_(not frozen)
        if ranks[0] != self._rank:
            self.copies.append(first)
        if len(ranks) > 1:
            self._shared.append((first, ranks))

    def _name(self, layer: int, parameter: str) -> str:
        return f"{self._names[layer]}.{parameter}"
