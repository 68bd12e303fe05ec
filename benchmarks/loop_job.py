"""The ranks of benchmarks/loop.py: train with one cut, take the suggestion, train with it, in one group of processes.

What came of each case goes out as a JSON line.
"""

import json
import random
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import pptoolkit as pp
from benchmarks.cases import take_cases
from benchmarks.swin_like import swin_like_layers, swin_like_loss
from pptoolkit.engine.process_group import World
from pptoolkit.models.gpt import GPTConfig, gpt_layers, next_token_loss
from pptoolkit.models.mlp import squared_error
from pptoolkit.models.sleeping import sleeping_layers
from pptoolkit.plan import equal_layer_cuts
from pptoolkit.planner.baselines import block_partition_cuts, by_parameters_cuts
from pptoolkit.run import Run
from pptoolkit.schedule import ActionKind, build_schedule
from pptoolkit.simulator import Costs, Program, simulate
from pptoolkit.telemetry.settings import TelemetrySettings

OUTCOMES = "outcomes.jsonl"


def take(case: dict[str, Any], runs: Path, world: World) -> None:
    """Train one case with all its cuts and leave what came of it in ``runs``."""
    outcome = _Case(case, runs, world.rank, world.ranks).run()
    if world.rank == 0:
        with (runs / OUTCOMES).open("a") as file:
            file.write(json.dumps(outcome) + "\n")


class _Case:
    """One model: what the loop makes of it."""

    def __init__(self, case: dict[str, Any], runs: Path, rank: int, ranks: int) -> None:
        self.case, self.runs, self.rank, self.ranks = case, runs, rank, ranks
        self.name = str(case["name"])
        self.micro_batches = int(case.get("micro_batches", 8))

    def run(self) -> dict[str, Any]:
        layers = len(self._layers())
        first = self._train("equal", equal_layer_cuts(layers, self.ranks))
        chosen = self._agree(lambda: self._suggest(first))
        plan = pp.Plan.from_dict(chosen["plan"]) if chosen["plan"] else None
        outcome: dict[str, Any] = {"name": self.name, "equal_s": self._step(first), "predicted_s": chosen["predicted_s"]}
        outcome |= {"cuts": list(plan.cuts) if plan else None, "replay_error_ratio": chosen["replay_error_ratio"]}
        ways: dict[str, tuple[int, ...]] = {name: tuple(cuts) for name, cuts in chosen["others"].items()}
        if plan is not None:
            ways = {"ours": plan.cuts, **ways}
        for name, cuts in ways.items():
            same = cuts == equal_layer_cuts(layers, self.ranks)
            known = {tuple(c): outcome[f"{n}_s"] for n, c in ways.items() if f"{n}_s" in outcome}
            outcome[f"{name}_s"] = outcome["equal_s"] if same else known.get(cuts) or self._step(self._train(name, cuts))
        outcome.setdefault("ours_s", outcome["equal_s"])
        return outcome

    def _suggest(self, run: Path) -> dict[str, Any]:
        opened = Run.open(run)
        found, costs = opened.suggest(), opened.layer_costs()
        assert costs is not None, "a run that trained has layer costs"
        others = {"block_partition": block_partition_cuts(costs.compute_s, self.ranks)}
        sizes = [layer.parameter_bytes for layer in costs.layers]
        others["by_parameters"] = by_parameters_cuts(sizes, self.ranks)
        if self.case["kind"] == "sleeping":
            others["best"] = self._best_of_all()
        return {
            "plan": found[0].plan.to_dict() if len(found) else None,
            "predicted_s": found[0].step_time_s if len(found) else None,
            "replay_error_ratio": found.replay_error_ratio,
            "others": {name: list(cuts) for name, cuts in others.items()},
        }

    def _best_of_all(self) -> tuple[int, ...]:
        """Return the best of all cuts by the costs that the layers are known to have; it is then trained like the others."""
        forward, backward = self.case["forward_s"], self.case["backward_s"]
        program = Program(build_schedule("1f1b", ranks=self.ranks, micro_batches=self.micro_batches))

        def step_s(cuts: tuple[int, ...]) -> float:
            op_s = {}
            for stage, part in enumerate(pp.Plan(cuts=cuts).stage_layers(len(forward))):
                op_s[stage, ActionKind.FORWARD] = sum(forward[i] for i in part)
                op_s[stage, ActionKind.BACKWARD] = sum(backward[i] for i in part)
            return simulate(program, Costs(op_s=op_s)).step_time_s

        return min(combinations(range(1, len(forward)), self.ranks - 1), key=step_s)

    def _train(self, name: str, cuts: tuple[int, ...]) -> Path:
        layers = self._layers()
        plan = pp.Plan(cuts=cuts, micro_batches=self.micro_batches)
        loss, data = self._loss(), self._data()
        torch.manual_seed(0)
        trainer = pp.Trainer(
            layers,
            loss=loss,
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
            plan=plan,
            run=self.runs / f"{self.name}-{name}",
            telemetry=TelemetrySettings(port=None),
            progress=False,
        )
        with trainer:
            trainer.fit(data, batch_size=self.case.get("batch_size", 2 * self.micro_batches), steps=self.case["steps"])
        dist.barrier()
        return trainer.run.path

    def _step(self, run: Path) -> float:
        def read() -> float:
            step_time = Run.open(run).steady().step_time
            assert step_time is not None, "a run that trained has usable steps"
            return step_time.median

        return float(self._agree(read))

    def _agree(self, make: Any) -> Any:
        """Return what rank 0 makes, on every rank."""
        box = [make() if self.rank == 0 else None]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def _layers(self) -> list[pp.Layer]:
        kind = self.case["kind"]
        if kind == "sleeping":
            return sleeping_layers(self.case["forward_s"], self.case["backward_s"], width=8)
        if kind == "gpt":
            return gpt_layers(GPTConfig(**self.case["config"]))
        return swin_like_layers(**self.case["config"])

    def _loss(self) -> Any:
        return {"sleeping": squared_error, "gpt": next_token_loss}.get(self.case["kind"], swin_like_loss)

    def _data(self) -> torch.utils.data.TensorDataset:
        draw = torch.Generator().manual_seed(0)
        kind, samples = self.case["kind"], 4 * self.case.get("batch_size", 2 * self.micro_batches)
        if kind == "sleeping":
            x = torch.randn(samples, 8, generator=draw)
            return torch.utils.data.TensorDataset(x, x.cos())
        config = self.case["config"]
        if kind == "gpt":
            tokens = torch.randint(config["vocabulary"], (samples, config["sequence"] + 1), generator=draw)
            return torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, 1:])
        images = torch.randn(samples, 3, config["image"], config["image"], generator=draw)
        return torch.utils.data.TensorDataset(images, torch.randint(config["classes"], (samples,), generator=draw))


def random_costs(layers: int, seed: int) -> tuple[list[float], list[float]]:
    """Return forward and backward seconds of sleeping layers that differ by up to ten times."""
    draw = random.Random(seed)
    forward = [draw.choice((1, 1, 1, 2, 3)) * draw.uniform(0.001, 0.002) for _ in range(layers)]
    return forward, [2 * f for f in forward]


if __name__ == "__main__":
    take_cases(take)
