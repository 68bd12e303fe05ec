"""The job file of ``pptoolkit train``: strict, so that a misspelt key is an error and never ignored."""

import difflib
import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pptoolkit.errors import ConfigError

Positive = Annotated[int, Field(ge=1)]
Ratio = Annotated[float, Field(ge=0, lt=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ModelConfig(_Section):
    """A GPT: embedding, ``depth`` blocks and a head, each of them a layer; or ``kind = "custom"``: your own function.

    ``factory = "my_model.py:job"`` names a function that takes ``arguments`` and returns a :class:`pptoolkit.Job`.
    """

    kind: Literal["gpt", "custom"] = "gpt"
    factory: str = ""
    arguments: dict[str, Any] = {}
    width: Positive = 128
    depth: Positive = 4
    heads: Positive = 4
    sequence: Positive = 128
    dropout: Ratio = 0.1

    @model_validator(mode="after")
    def _fits_together(self) -> "ModelConfig":
        if self.width % self.heads:
            raise ValueError(f"width={self.width} is no multiple of heads={self.heads}; choose heads that divide width")
        if self.kind == "custom" and not self.factory:
            raise ValueError('kind = "custom" needs factory = "file.py:function"; the function returns a pptoolkit.Job')
        return self


class DataConfig(_Section):
    """Text to train on; an empty path means the Python standard library's own source files."""

    path: str = ""
    vocabulary: Annotated[int, Field(ge=300, le=65536)] = 4096
    max_bytes: Positive = 4_000_000


class TrainingConfig(_Section):
    """How the model is trained.

    ``batch_size`` samples make a step: over all replicas, ``accumulation`` passes through the pipeline, and the plan's
    micro-batches. ``no_decay``, ``frozen`` and ``recompute`` are shell patterns: ``"*.bias"`` fits parameters by name,
    ``"block0?"`` fits layers. The learning rate rises over ``warmup_steps`` and falls by ``decay`` to ``final_ratio`` of
    itself. Targets equal to ``ignore_token`` count nowhere. ``replication``: how replicas stay equal. ``device``: ``"cuda"`` gives
    each rank a GPU, ``"auto"`` does so where there is one for each; the default is the CPU, which is everywhere and gives the same
    numbers everywhere.
    """

    batch_size: Positive = 32
    steps: Positive = 40
    seed: Annotated[int, Field(ge=0)] = 0
    learning_rate: Annotated[float, Field(gt=0)] = 3e-4
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    decay: Literal["constant", "cosine", "linear"] = "constant"
    final_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    no_decay: list[str] = []
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    accumulation: Positive = 1
    dtype: Literal["float32", "float64"] = "float32"
    precision: Literal["full", "bf16", "fp16"] = "full"
    ignore_token: Annotated[int, Field(ge=0)] | None = None
    frozen: list[str] = []
    recompute: list[str] = []
    compile: bool = False
    replication: Literal["ddp", "fsdp"] = "ddp"
    device: Literal["cpu", "cuda", "auto"] = "cpu"

    @model_validator(mode="after")
    def _goes_together(self) -> "TrainingConfig":
        if self.precision != "full" and self.dtype == "float64":
            raise ValueError(f"precision={self.precision!r} has no effect with dtype='float64'; use one or the other")
        if self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps={self.warmup_steps} do not fit steps={self.steps}; "
                f"use fewer warmup_steps, or --steps {self.warmup_steps + 1} or more"
            )
        if self.final_ratio and self.decay == "constant":
            raise ValueError(f"final_ratio={self.final_ratio} has no effect with decay='constant'; use decay='cosine' or 'linear'")
        return self


class PlanConfig(_Section):
    """How to cut when no plan file is given. No ``cuts``: the same number of layers for every rank.

    ``replicas`` pipelines train side by side, each on its part of the batch; ``recompute`` names stages that keep no
    activations and run again in the backward pass. ``auto_rebalance`` cuts anew while training, where that pays: it looks after
    every ``rebalance_every`` steps, more seldom where looking would take more than 1 % of the time.
    """

    cuts: list[int] | None = None
    schedule: str = "1f1b"
    micro_batches: Positive = 8
    replicas: Positive = 1
    recompute: list[int] = []
    auto_rebalance: bool = False
    rebalance_every: Annotated[int, Field(ge=8)] = 20


class TelemetryConfig(_Section):
    """What is watched, and who may read it from elsewhere. The token itself never stands here: run.json keeps this file.

    ``every``: keep the events of every n-th step. ``max_bytes``: bound of all event files of the run, 0 for none.
    ``token_file``, ``token_env``: the file, or the environment variable, that holds the bearer token.
    """

    enabled: bool = True
    port: Annotated[int, Field(ge=1, le=65535)] = 9100
    address: str = "127.0.0.1"
    advertise: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    token_file: str = ""
    token_env: str = ""
    sample_layers_every: Annotated[int, Field(ge=0)] = 1
    pushgateway: str | None = None
    every: Positive = 1
    max_bytes: Annotated[int, Field(ge=0)] = 16 << 30
    clocks_s: Annotated[float, Field(gt=0)] = 30.0

    @model_validator(mode="after")
    def _is_an_address(self) -> "TelemetryConfig":
        # Found here, before a rank starts; what a rank is told may also come from Python.
        if self.pushgateway is not None and not re.match(r"https?://[^\s/]+", self.pushgateway):
            raise ValueError(f'pushgateway={self.pushgateway!r} is no address; write it like "http://127.0.0.1:9091"')
        return self


class RunConfig(_Section):
    """A whole job: ``[model] [data] [training] [plan] [telemetry] [run]``."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    plan: PlanConfig = PlanConfig()
    telemetry: TelemetryConfig = TelemetryConfig()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "RunConfig":
        """Read a job file.

        Raises:
            ConfigError: If it is missing, is no TOML, or has a key or value that no job has.
        """
        try:
            body = tomllib.loads(Path(path).read_text())
        except FileNotFoundError as error:
            raise ConfigError(f"there is no config at {path}; examples/gpt.toml is one to start from") from error
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"cannot read {path}: {error}; it must be a TOML file like examples/gpt.toml") from error
        return cls.from_dict(body, where=str(path))

    @classmethod
    def from_dict(cls, body: dict[str, Any], *, where: str) -> "RunConfig":
        """Check parsed TOML; ``where`` names the file in messages."""
        try:
            config = cls.model_validate(body)
        except ValidationError as error:
            raise ConfigError(f"{where}: {_explain(error)}") from None
        return config


def _explain(error: ValidationError) -> str:
    """Turn pydantic's first finding into one sentence with the key, the value and the remedy."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        section = RunConfig.model_fields if len(first["loc"]) == 1 else _section_fields(str(first["loc"][0]))
        close = difflib.get_close_matches(str(first["loc"][-1]), section, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(section)}"
        return f"unknown key {key!r}; {hint}"
    message = first["msg"].removeprefix("Value error, ")
    return (
        f"{key or 'the file'} = {first['input']!r}: {message[0].lower()}{message[1:]}"
        if first["type"] != "value_error"
        else f"[{key}] {message}"
    )


def _section_fields(section: str) -> list[str]:
    model = RunConfig.model_fields[section].annotation if section in RunConfig.model_fields else None
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else list(RunConfig.model_fields)
