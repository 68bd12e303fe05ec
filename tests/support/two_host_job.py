"""A training script as a user writes one, started by torchrun on each host: two stages, one a host.

torchrun ... two_host_job.py STEPS WIDTH
"""

import os
import sys
import time

import torch
from torch import nn

import pptoolkit as pp

ROWS = 4  # samples in a micro-batch; a message has ROWS * WIDTH * 4 bytes


class Scale(nn.Module):
    """Multiplies by a learned vector and sleeps a little: large messages, little work."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if type(x) is torch.Tensor:  # not while shapes are inferred
            time.sleep(float(os.environ.get("JOB_SLEEP_S", "0.005")))
        return x * self.weight


def main() -> None:
    steps, width = int(sys.argv[1]), int(sys.argv[2])
    x = torch.randn(64, width, generator=torch.Generator().manual_seed(0))
    telemetry = pp.TelemetrySettings(
        address="0.0.0.0",
        port=9100,
        token=os.environ["PPTOOLKIT_TOKEN"],
        tls_cert=os.environ.get("JOB_TLS_CERT", ""),
        tls_key=os.environ.get("JOB_TLS_KEY", ""),
        tls_client_ca=os.environ.get("JOB_TLS_CLIENT_CA", ""),
        clocks_s=0.5,
    )
    with pp.Trainer(
        [pp.Layer(f"scale{i}", Scale, width) for i in range(4)],
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        plan=pp.Plan(cuts=(2,), schedule="1f1b", micro_batches=4),
        run="runs/two",
        telemetry=telemetry,
    ) as trainer:
        trainer.fit(torch.utils.data.TensorDataset(x, x.cos()), batch_size=4 * ROWS, steps=steps)


if __name__ == "__main__":
    main()
