"""Starting telemetry for a rank on its device: what times its ops, whose memory is watched, which GPU is its own."""

from pptoolkit.engine.device import gpu_uuid
from pptoolkit.engine.device_clock import clock_source
from pptoolkit.engine.memory import memory_source
from pptoolkit.engine.process_group import World
from pptoolkit.telemetry import RunDirectory
from pptoolkit.telemetry.layout import RankLayout
from pptoolkit.telemetry.session import Telemetry
from pptoolkit.telemetry.settings import TelemetrySettings


def start_telemetry(settings: TelemetrySettings, run: RunDirectory, world: World) -> Telemetry:
    """Start telemetry for this rank; the run directory is there."""
    return Telemetry.start(
        settings,
        run,
        RankLayout.from_info(run.read_info(), world.rank),
        clock_source=clock_source(world.device),
        memory_source=memory_source(world.device),
        gpu_uuid=gpu_uuid(world.device),
    )
