"""layers.arrow: the measured layer costs as a file that any Arrow reader opens."""

import os
from pathlib import Path

import pyarrow as pa

from pptoolkit.analysis.layer_costs import LayerCost, LayerCosts
from pptoolkit.analysis.statistics import Interval
from pptoolkit.errors import RunError

LAYER_TABLE_VERSION = 1
LAYER_SCHEMA = pa.schema(
    [
        ("layer", pa.int32()),
        ("name", pa.string()),
        ("forward_s", pa.float64()),
        ("forward_low_s", pa.float64()),
        ("forward_high_s", pa.float64()),
        ("backward_s", pa.float64()),
        ("backward_low_s", pa.float64()),
        ("backward_high_s", pa.float64()),
        ("parameter_bytes", pa.int64()),
        ("activation_bytes", pa.int64()),
        ("boundary_bytes", pa.int64()),
        ("samples", pa.int64()),
        ("backward_samples", pa.int64()),
    ],
    metadata={"version": str(LAYER_TABLE_VERSION)},
)


def to_table(costs: LayerCosts) -> pa.Table:
    """Return the costs as an Arrow table of :data:`LAYER_SCHEMA`, one row a layer."""
    return pa.Table.from_pylist([_row(layer) for layer in costs.layers], schema=LAYER_SCHEMA)


def write_layers(path: Path, costs: LayerCosts) -> None:
    """Write the costs to an Arrow IPC file, replacing it in one step.

    Raises:
        RunError: If the file cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, LAYER_SCHEMA) as writer:
            writer.write_table(to_table(costs))
        partial.replace(path)
    except OSError as error:
        if partial.parent.is_dir():
            partial.unlink(missing_ok=True)
        raise RunError(f"cannot write the layer costs to {path}: {error}; free space or make the run directory writable") from error


def read_layers(path: Path) -> LayerCosts:
    """Read what :func:`write_layers` wrote.

    Raises:
        RunError: If the file is missing, torn, or of another version.
    """
    try:
        with pa.OSFile(str(path), "rb") as source:
            table = pa.ipc.open_file(source).read_all()
    except FileNotFoundError as error:
        raise RunError(f"there are no layer costs at {path}; write them with: pptoolkit suggest RUN") from error
    except (OSError, pa.ArrowInvalid) as error:
        raise RunError(f"cannot read the layer costs {path}: {error}; write them anew with: pptoolkit suggest RUN") from error
    version = (table.schema.metadata or {}).get(b"version", b"?").decode()
    if version != str(LAYER_TABLE_VERSION) or not set(LAYER_SCHEMA.names) <= set(table.schema.names):
        raise RunError(
            f"{path} has version {version} and this release reads {LAYER_TABLE_VERSION}; write it anew with: pptoolkit suggest RUN"
        )
    return LayerCosts(layers=tuple(_cost(row) for row in table.to_pylist()))


def _row(layer: LayerCost) -> dict[str, object]:
    return {
        "layer": layer.layer,
        "name": layer.name,
        "forward_s": layer.forward.median,
        "forward_low_s": layer.forward.low,
        "forward_high_s": layer.forward.high,
        "backward_s": layer.backward.median,
        "backward_low_s": layer.backward.low,
        "backward_high_s": layer.backward.high,
        "parameter_bytes": layer.parameter_bytes,
        "activation_bytes": layer.activation_bytes,
        "boundary_bytes": layer.boundary_bytes,
        "samples": layer.forward.samples,
        "backward_samples": layer.backward.samples,
    }


def _cost(row: dict[str, object]) -> LayerCost:
    def interval(name: str, samples: str) -> Interval:
        median, low, high = (float(str(row[key])) for key in (f"{name}_s", f"{name}_low_s", f"{name}_high_s"))
        return Interval(median=median, low=low, high=high, samples=int(str(row[samples])))

    return LayerCost(
        layer=int(str(row["layer"])),
        name=str(row["name"]),
        forward=interval("forward", "samples"),
        backward=interval("backward", "backward_samples"),
        parameter_bytes=int(str(row["parameter_bytes"])),
        activation_bytes=int(str(row["activation_bytes"])),
        boundary_bytes=int(str(row["boundary_bytes"])),
    )
