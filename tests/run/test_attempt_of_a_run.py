"""A real run with an evaluation in it: everything that the attempt did is in the report's account of it."""

import subprocess
import sys
import textwrap
from pathlib import Path

from pptoolkit.run import Run

SCRIPT = """
    import torch
    import pptoolkit as pp
    from pptoolkit.models.sleeping import sleeping_layers

    x = torch.randn(64, 8)
    data = torch.utils.data.TensorDataset(x, x.cos())
    with pp.Trainer(
        sleeping_layers([0.004] * 2, [0.004] * 2),
        loss=torch.nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        plan=pp.Plan(cuts=(), micro_batches=4),
        run="r",
        telemetry=pp.TelemetrySettings(port=None),
    ) as trainer:
        trainer.fit(data, batch_size=8, steps=10)
        trainer.evaluate(data, batch_size=8)
        trainer.fit(data, batch_size=8, steps=20)
"""


def test_start_up_steps_and_evaluation_are_in_the_account_of_the_attempt(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)], cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    report = Run.open(tmp_path / "r").report()
    assert (report.steps_done, report.missing) == (20, ())
    (rank,) = report.attempt
    assert abs(sum(rank.parts.values()) / rank.wall_s - 1) < 1e-9
    # 8 batches of 4 micro-batches forward through 2 layers of 4 ms, against 20 steps of 4 x 2 x 8 ms.
    assert rank.parts["evaluation"] >= 8 * 4 * 2 * 0.004
    assert rank.parts["steps"] >= 20 * 4 * 2 * 0.008
    assert rank.parts["startup"] > 0, "from the start of the process, imports included"
    assert rank.unattributed_ratio < 0.02
    assert rank.parts["between"] < 0.2 * rank.wall_s
