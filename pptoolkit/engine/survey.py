"""What ranks learn of each other while nothing trains, told to telemetry: how far their clocks are apart, what an idle link carries."""

from collections.abc import Sequence

from pptoolkit.engine.clocks import ClockExchange, LinkProbe, probe_links
from pptoolkit.telemetry.session import Telemetry


class Survey:
    """This rank's part of the measurements; every rank makes one, and calls it together with the others.

    Args:
        telemetry: Where it is told. Without a recorder that is on, nothing is measured.
        interval_s: Time between two looks at the clocks.
    """

    def __init__(self, telemetry: Telemetry, *, interval_s: float) -> None:
        self._telemetry, self._clocks = telemetry, ClockExchange(interval_s=interval_s)

    @property
    def due(self) -> bool:
        """Whether it is time, as far as this rank knows, to look at the clocks again."""
        return self._telemetry.recorder.enabled and self._clocks.due

    def begin(self, stage_ranks: Sequence[int], probe: LinkProbe | None) -> None:
        """Look at clocks and links before the first step.

        Args:
            stage_ranks: Global rank of each stage of this rank's replica.
            probe: How links are measured; None: they are not. Between GPUs the probe would measure the hosts' network, and tensors
                take another way.
        """
        if not self._telemetry.recorder.enabled:
            return
        self.read_clocks()
        if probe is None:
            return
        for found in probe_links(stage_ranks, probe):
            end_ns = found.start_ns + found.one_way_ns
            self._telemetry.add_probe(stage=found.stage, peer=found.peer_stage, start_ns=found.start_ns, end_ns=end_ns, bytes=found.bytes)

    def read_clocks(self) -> None:
        """Look at the clocks now."""
        clock = self._clocks.measure()
        self._telemetry.add_clock(clock.offset_ns, clock.uncertainty_ns, local_ns=clock.local_ns)

    def end(self) -> None:
        """Look at the clocks once more where they were compared at all, so that their drift is known up to the last step."""
        if self._clocks.needed:
            self.read_clocks()
