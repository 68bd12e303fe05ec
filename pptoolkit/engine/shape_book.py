"""The shapes of this rank's stages, found once per distinct input shape together with all other ranks, and kept."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from pptoolkit.engine import micro_batch
from pptoolkit.engine.border import Border
from pptoolkit.engine.shapes import StageShapes, infer_stage
from pptoolkit.engine.stage_module import StageModule
from pptoolkit.errors import ConfigError, StageError, TrainingError

StagesShapes = dict[int, StageShapes]  # by stage


class ShapeBook:
    """Knows what crosses the borders of this rank's stages.

    Every rank sees the whole batch, so all of them miss the same entry at the same moment and work it out along the
    pipeline, each stage telling the next one what it hands on. Afterwards they agree that it went well, so that a layer that
    fails stops every rank before the step begins.

    Args:
        modules: This rank's stages by index.
        stage_to_rank: Pipeline rank of each stage.
        group_ranks: Global rank of each pipeline rank.
        rank: This rank in the pipeline.
        device: Where the stages live.
    """

    def __init__(
        self,
        modules: Mapping[int, StageModule],
        stage_to_rank: Sequence[int],
        *,
        group_ranks: Sequence[int],
        rank: int,
        device: torch.device,
        group: Any = None,
    ) -> None:
        self._modules, self._stage_to_rank, self._group_ranks = modules, tuple(stage_to_rank), tuple(group_ranks)
        self._rank, self._device, self._group = rank, device, group
        self._known: dict[Hashable, StagesShapes] = {}
        self._frozen: list[bool] = []
        self._parameters: list[torch.nn.Parameter] = []

    @property
    def first(self) -> StagesShapes:
        """The shapes of the first micro-batch ever seen; empty before."""
        return next(iter(self._known.values()), {})

    def __len__(self) -> int:
        return len(self._known)

    def look_up(self, arguments: tuple[Any, ...], named: dict[str, Any], *, train: bool) -> StagesShapes:
        """Return the shapes for one micro-batch; the same call is made on every rank.

        Args:
            arguments: What the first layer is given.
            named: What layers take from the batch by name.
            train: Whether the layers are in training mode.

        Raises:
            StageError: If a layer of this rank fails on these shapes.
            TrainingError: If a layer of another rank does, or something that cannot would cross a border.
        """
        key = (train, micro_batch.key_of(arguments), micro_batch.key_of(named))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._infer(arguments, named)
        return known

    def check_frozen(self) -> None:
        """Refuse parameters that were frozen or freed since the shapes were found: which gradients travel depends on it.

        Raises:
            ConfigError: Naming the remedy.
        """
        if self._known and self._pattern() != self._frozen:
            raise ConfigError(
                f"rank {self._rank}: parameters were frozen or unfrozen after the first step; "
                "call forget_shapes() of the pipeline on every rank after that"
            )

    def forget(self) -> None:
        """Find all shapes anew from the next step on. Call it on every rank."""
        self._known.clear()

    def _pattern(self) -> list[bool]:
        return [not p.requires_grad for p in self._parameters]

    def _infer(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> StagesShapes:
        self._parameters = [p for module in self._modules.values() for p in module.parameters()]  # a walk that no step should repeat
        self._frozen = self._pattern()
        known: StagesShapes = {}
        error: Exception | None = None
        told = ""  # what went wrong on a rank before this one
        for index in sorted(self._modules):
            before: Border | None = None
            try:
                before, told = self._border_before(index, known, told)
                if not told and error is None:
                    known[index] = self._infer_stage(index, before, arguments, named)
            except Exception as failed:
                error = failed
            after = None if told or error is not None else known[index].outputs
            self._tell_next(index, after, told or str(error or ""))
        self._agree(error)
        return known

    def _border_before(self, index: int, known: StagesShapes, told: str) -> tuple[Border | None, str]:
        if index == 0:
            return None, told
        source = self._stage_to_rank[index - 1]
        if source == self._rank:
            return (known[index - 1].outputs, told) if index - 1 in known else (None, told)
        box: list[Any] = [None]
        dist.recv_object_list(box, src=self._group_ranks[source], group=self._group)
        border, heard = box[0]
        return border, told or heard

    def _tell_next(self, index: int, border: Border | None, told: str) -> None:
        if index + 1 < len(self._stage_to_rank) and self._stage_to_rank[index + 1] != self._rank:
            target = self._group_ranks[self._stage_to_rank[index + 1]]
            dist.send_object_list([(border, told)], dst=target, group=self._group)

    def _infer_stage(self, index: int, before: Border | None, arguments: tuple[Any, ...], named: dict[str, Any]) -> StageShapes:
        module = self._modules[index]
        taken = {name: named[name] for name in module.batch_inputs}
        last = index == len(self._stage_to_rank) - 1
        rank = self._group_ranks[self._rank]
        try:
            return infer_stage(module, before, arguments, taken, last=last, device=self._device)
        except TrainingError as error:
            raise TrainingError(f"stage {index} on rank {rank}: {error}") from error
        except Exception as error:
            raise StageError(rank=rank, stage=index, micro_batch=0, step=0, doing="shape inference", cause=error) from error

    def _agree(self, error: Exception | None) -> None:
        """Raise on every rank what went wrong on one of them."""
        texts: list[Any] = [None] * len(self._group_ranks)
        if len(texts) > 1:
            dist.all_gather_object(texts, str(error) if error is not None else "", group=self._group)
        if error is not None:
            raise error
        for rank, text in enumerate(texts):
            if text:
                raise TrainingError(f"rank {self._group_ranks[rank]} cannot run this batch, so no rank does: {text}")
