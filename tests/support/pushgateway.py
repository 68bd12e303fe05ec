"""A stand-in for a Prometheus Pushgateway: keeps a group of metrics per URL, replaces it on PUT, and serves all groups on /metrics."""

import base64
import threading
from urllib.parse import unquote

from prometheus_client.parser import text_string_to_metric_families

from tests.support.stand_in import Answer, Asked

TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Pushgateway:
    """Refuses what the real one refuses: a path without a job, a body that does not parse, timestamps, a label clash with the group."""

    def __init__(self) -> None:
        self.groups: dict[tuple[tuple[str, str], ...], str] = {}
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> Answer:
        if asked.method == "GET" and asked.path == "/metrics":
            return Answer(200, self.text().encode(), TEXT)
        if asked.method not in ("PUT", "POST", "DELETE") or not asked.path.startswith("/metrics/"):
            return Answer(404, b"404 page not found\n", "text/plain")
        try:
            labels = _labels(asked.path)
            body = asked.body.decode()
            for family in text_string_to_metric_families(body):
                for sample in family.samples:
                    if sample.timestamp is not None:
                        raise ValueError("pushed metrics must not have timestamps")
                    if clash := {k for k, v in sample.labels.items() if k in labels and labels[k] != v}:
                        raise ValueError(f"label clash with the grouping key: {clash}")
        except ValueError as error:
            return Answer(400, f"{error}\n".encode(), "text/plain")
        with self._lock:
            key = tuple(sorted(labels.items()))
            if asked.method == "DELETE":
                self.groups.pop(key, None)
            else:
                self.groups[key] = body
        return Answer(202 if asked.method == "DELETE" else 200, b"")

    def text(self) -> str:
        """Return the groups as one exposition: each family once, every sample with its group's labels."""
        heads: dict[str, str] = {}
        lines: dict[str, list[str]] = {}
        with self._lock:
            groups = dict(self.groups)
        for key, body in groups.items():
            for family in text_string_to_metric_families(body):
                kept = f"{family.name}_total" if family.type == "counter" else family.name
                heads[family.name] = f"# HELP {kept} {family.documentation}\n# TYPE {kept} {family.type}"
                for sample in family.samples:
                    labels = {**sample.labels, **dict(key)}
                    inside = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
                    lines.setdefault(family.name, []).append(f"{sample.name}{{{inside}}} {sample.value!r}".replace(" inf", " +Inf"))
        return "".join(f"{heads[name]}\n" + "\n".join(found) + "\n" for name, found in lines.items())


def _labels(path: str) -> dict[str, str]:
    parts = path.removeprefix("/metrics/").split("/")
    if len(parts) % 2 or parts[0].removesuffix("@base64") != "job":
        raise ValueError(f"odd path {path}")
    labels = {}
    for name, value in zip(parts[::2], parts[1::2], strict=True):
        if name.endswith("@base64"):
            value = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).decode()
        labels[name.removesuffix("@base64")] = unquote(value)
    if not labels["job"]:
        raise ValueError("job name is required")
    return labels
