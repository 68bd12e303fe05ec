"""The final metrics of a rank, left on a Prometheus Pushgateway: a short run may end before anyone scrapes it."""

import threading
from collections.abc import Mapping

from prometheus_client import push_to_gateway
from prometheus_client.registry import Collector

FINAL_JOB = "pptoolkit-final"
"""Another job than that of scraped ranks, so that what stays on the gateway for ever raises no alert about a silent rank."""

PUSH_LIMIT_S = 3.0


def push_final(gateway: str, source: Collector, labels: Mapping[str, str], *, limit_s: float = PUSH_LIMIT_S) -> str:
    """Replace what the gateway holds under ``labels``; return what went wrong, or "".

    Args:
        gateway: ``http://host:port``.
        source: The metrics.
        labels: What tells this rank from all others.
        limit_s: When to give up. A name server that does not answer counts too, which a socket's own time limit would not.
    """
    failures: list[str] = []

    def push() -> None:
        try:
            push_to_gateway(gateway, job=FINAL_JOB, registry=source, grouping_key=dict(labels), timeout=limit_s)
        except Exception as error:
            failures.append(str(error) or type(error).__name__)

    thread = threading.Thread(target=push, name="pptoolkit-push", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        return f"no answer within {limit_s:g} s"
    return failures[0] if failures else ""
