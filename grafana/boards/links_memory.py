"""Links and memory of one run: what crosses the borders of the stages, what fills up, and what the machines do."""

from grafana.board import JOB, RANK, RUN, Row, board
from grafana.panels import BAD, WARN, Query, bars, graph, steps

_RUN = f'job="{JOB}", run_id="$run", rank=~"$rank"'
_LINK = "src_stage, dst_stage, kind"
_ARROW = "{{kind}} {{src_stage}} → {{dst_stage}}"


def _per_link(metric: str) -> str:
    return f"sum by ({_LINK}) (rate(pptoolkit_{metric}{{{_RUN}}}[$__rate_interval]))"


_LINKS = Row(
    "Links between stages",
    panels=[
        graph(
            "Throughput without waiting (bytes per second)",
            Query(f"max by ({_LINK}) (pptoolkit_link_throughput_bytes_per_second{{{_RUN}}})", _ARROW),
            unit="Bps",
            about="From when both ends were ready until the tensor was there; the last step's transfers that the clocks could time.",
        ),
        bars(
            "What the idle link managed before training (bytes per second)",
            Query(f"max by ({_LINK}) (pptoolkit_link_probe_bytes_per_second{{{_RUN}}})", _ARROW),
            unit="Bps",
            about="The ceiling for the panel beside it, taken with messages of a megabyte; smaller ones reach less.",
        ),
        graph(
            "Carried (bytes per second)",
            Query(_per_link("link_bytes_total"), _ARROW),
            unit="Bps",
            about="What really crossed each border, averaged over waiting and computing.",
        ),
        graph(
            "Blocked in receives (percent of the time)",
            Query(_per_link("link_wait_seconds_total"), _ARROW),
            unit="percentunit",
            about="Mostly waiting for the sender to compute, which is imbalance or the schedule, not the link.",
        ),
        graph(
            "Transferring (percent of the time)",
            Query(_per_link("link_transfer_seconds_total"), _ARROW),
            unit="percentunit",
            about="Time in which a tensor was really under way and its receiver waited for it.",
        ),
        graph(
            "Transfers too short to be timed (per second)",
            Query(_per_link("link_unreliable_samples_total"), _ARROW),
            unit="short",
            about="Shorter than three times the uncertainty of the clocks: counted here, left out of the throughput.",
        ),
    ],
)

_MEMORY = Row(
    "Memory",
    panels=[
        graph(
            "Memory in use, by rank and kind (bytes)",
            Query(f'pptoolkit_memory_bytes{{{_RUN}, kind!="host"}}', "rank {{rank}}: {{kind}}"),
            unit="bytes",
            about="Allocated and reserved by torch on the device, device by all processes; resident is the process on the host.",
        ),
        graph(
            "Highest so far, by rank and kind (bytes)",
            Query(f'pptoolkit_memory_peak_bytes{{{_RUN}, kind!="host"}}', "rank {{rank}}: {{kind}}"),
            unit="bytes",
            about="Peaks between two looks are caught where torch's allocator tells them.",
        ),
        graph(
            "Share of the memory that is in use (percent)",
            Query(
                f"max by (host, kind) (pptoolkit_memory_bytes{{{_RUN}}} / pptoolkit_memory_limit_bytes{{{_RUN}}})",
                "{{host}}: {{kind}}",
            ),
            unit="percentunit",
            about="By all processes of a host or a device; of several devices, the fullest.",
            most=1,
            thresholds=steps((0.8, WARN), (0.9, BAD)),
        ),
        graph(
            "Memory of the hosts (bytes)",
            Query(f'max by (host) (pptoolkit_memory_bytes{{{_RUN}, kind="host"}})', "{{host}}: in use"),
            Query(f'max by (host) (pptoolkit_memory_limit_bytes{{{_RUN}, kind="host"}})', "{{host}}: there is"),
            unit="bytes",
            about="All processes together: what is left decides whether the next allocation ends a run.",
        ),
    ],
)

_MACHINES = Row(
    "Machines and clocks",
    panels=[
        graph(
            "CPU of the hosts (percent of all cores)",
            Query(f"max by (host) (pptoolkit_host_cpu_ratio{{{_RUN}}})", "{{host}}"),
            unit="percentunit",
            about="All processes. Near 100 % on CPU runs, every timing competes with something else.",
            most=1,
        ),
        graph(
            "Devices at work (percent of the time)",
            Query(f"pptoolkit_device_utilization_ratio{{{_RUN}}}", "rank {{rank}}"),
            unit="percentunit",
            about="Share of the time in which the GPU ran some kernel. Empty on CPU runs.",
            most=1,
        ),
        graph(
            "Network of the hosts (bytes per second)",
            Query(
                f"max by (host, direction) (rate(pptoolkit_host_network_bytes_total{{{_RUN}}}[$__rate_interval]))",
                "{{host}}: {{direction}}",
            ),
            unit="Bps",
            about="All interfaces and processes of each host, loopback included.",
        ),
        graph(
            "How well the ranks' clocks are known (seconds)",
            Query(f"pptoolkit_clock_uncertainty_seconds{{{_RUN}}}", "rank {{rank}}"),
            unit="s",
            about="Transfers shorter than three times this are not timed. Grows when clocks drift between two exchanges.",
        ),
    ],
)

BOARD = board(
    "pptoolkit-links-memory",
    "pptoolkit: links and memory",
    "What crosses the borders of the stages, what fills up, and what the machines do.",
    variables=[RUN, RANK],
    rows=[_LINKS, _MEMORY, _MACHINES],
)
