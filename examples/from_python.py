"""Started with: torchrun --nproc-per-node 2 examples/from_python.py"""

import torch
from torch import nn

import pptoolkit as pp

layers = [
    pp.Layer("embed", nn.Embedding, 1000, 64),  # name, factory, arguments: built only on the rank that runs it
    *(pp.Layer(f"block{i}", nn.TransformerEncoderLayer, 64, 4, 128, batch_first=True) for i in range(4)),
    pp.Layer("head", nn.Linear, 64, 1000),
]
tokens = torch.randint(1000, (256, 33), generator=torch.Generator().manual_seed(0))
dataset = torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, 1:])

with pp.Trainer(
    layers,
    loss=lambda logits, target: nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten()),
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-4),
    plan=pp.Plan(cuts=[3], schedule="1f1b", micro_batches=8),
    run="runs/from-python",
    seed=0,
) as trainer:
    trainer.fit(dataset, batch_size=64, steps=12)

if trainer.world.rank == 0:
    run = pp.Run.open(trainer.run.path)  # reading a run needs no torch
    print(run.report().verdict.evidence)
    print(run.suggest().to_dict()["suggestions"] or run.suggest().no_change)
