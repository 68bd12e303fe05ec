"""All runs that are scraped, side by side, and what ended runs have left on a Pushgateway."""

from grafana.board import FINAL_JOB, JOB, Row, Variable, board
from grafana.panels import BAD, Query, graph, number, steps, table

_JOB = f'job="{JOB}", run_id=~"$runs"'
_FINAL = f'job="{FINAL_JOB}"'
_RUNS = Variable("runs", "Runs", f'pptoolkit_run_info{{job="{JOB}"}}', "run_id", several=True)
_TIME = f"pptoolkit_rank_time_seconds_total{{{_JOB}}}"
_COMPUTE = f'pptoolkit_rank_time_seconds_total{{{_JOB}, state="compute"}}'
_OVERVIEW = "/d/pptoolkit-run?var-run=${__value.text}&${datasource:queryparam}&${__url_time_range}"


def _by_run(how: str, expression: str) -> str:
    return f"{how} by (run_id) ({expression})"


_STEP = _by_run(
    "max",
    f"rate(pptoolkit_step_duration_seconds_sum{{{_JOB}}}[$__rate_interval])"
    f" / rate(pptoolkit_step_duration_seconds_count{{{_JOB}}}[$__rate_interval])",
)
_SAMPLES = _by_run("sum", f"rate(pptoolkit_samples_total{{{_JOB}}}[$__rate_interval])")
_IDLE = f"1 - {_by_run('sum', f'rate({_COMPUTE}[$__rate_interval])')} / {_by_run('sum', f'rate({_TIME}[$__rate_interval])')}"
_LOSS = _by_run("max", f"pptoolkit_loss{{{_JOB}}}")
_STEPS = _by_run("max", f"pptoolkit_steps_total{{{_JOB}}}")

_NOW = Row(
    "Now",
    across=4,
    height=4,
    panels=[
        number(
            "Runs that train",
            Query(f"count(count by (run_id) (pptoolkit_run_info{{{_JOB}}}))"),
            unit="short",
            about="Runs with scraped ranks.",
        ),
        number("Ranks that answer", Query(f"count(up{{{_JOB}}} == 1)"), unit="short", about="Ranks of all these runs."),
        number(
            "Ranks that do not answer",
            Query(f"count(up{{{_JOB}}} == 0) or vector(0)"),
            unit="short",
            about="Targets that are known and silent.",
            thresholds=steps((1, BAD)),
        ),
        number(
            "Alerts firing",
            Query(f'count(ALERTS{{{_JOB}, alertstate="firing"}}) or vector(0)'),
            unit="short",
            about="Alerts of all these runs.",
            thresholds=steps((1, BAD)),
        ),
    ],
)

_TABLES = Row(
    "Runs",
    across=1,
    height=8,
    panels=[
        table(
            "Each run that trains",
            [
                ("Ranks up", "short", Query(_by_run("sum", f"up{{{_JOB}}}"), table=True)),
                ("Steps", "short", Query(_STEPS, table=True)),
                ("Step time", "s", Query(_STEP, table=True)),
                ("Samples per second", "short", Query(_SAMPLES, table=True)),
                ("Idle", "percentunit", Query(_IDLE, table=True)),
                ("Loss", "none", Query(_LOSS, table=True)),
                ("Restarts", "short", Query(_by_run("max", f"pptoolkit_restarts_total{{{_JOB}}}"), table=True)),
            ],
            key="run_id",
            key_title="Run",
            about="A click on a run opens its overview.",
            link=_OVERVIEW,
        ),
        table(
            "Ended runs on the Pushgateway: final values",
            [
                ("Steps", "short", Query(_by_run("max", f"pptoolkit_steps_total{{{_FINAL}}}"), table=True)),
                ("Samples", "short", Query(_by_run("sum", f"pptoolkit_samples_total{{{_FINAL}}}"), table=True)),
                ("Loss", "none", Query(_by_run("max", f"pptoolkit_loss{{{_FINAL}}}"), table=True)),
                (
                    "Mean step time",
                    "s",
                    Query(
                        _by_run(
                            "max",
                            f"pptoolkit_step_duration_seconds_sum{{{_FINAL}}} / pptoolkit_step_duration_seconds_count{{{_FINAL}}}",
                        ),
                        table=True,
                    ),
                ),
                ("Ended", "dateTimeAsIso", Query(_by_run("max", f"1000 * pptoolkit_last_step_timestamp_seconds{{{_FINAL}}}"), table=True)),
            ],
            key="run_id",
            key_title="Run",
            about="Left by runs whose telemetry.pushgateway is set; empty without a Pushgateway.",
        ),
    ],
)

_COMPARED = Row(
    "Compared",
    panels=[
        graph("Samples per second, by run", Query(_SAMPLES, "{{run_id}}"), unit="short", about="Throughput of each run."),
        graph("Step time, by run (seconds)", Query(_STEP, "{{run_id}}"), unit="s", about="Mean wall time of a step on the slowest rank."),
        graph(
            "Idle time, by run (percent)",
            Query(_IDLE, "{{run_id}}"),
            unit="percentunit",
            about="Share of all ranks' time in which they do not compute.",
            most=1,
        ),
        graph("Loss, by run", Query(_LOSS, "{{run_id}}"), unit="none", about="Mean loss of each step.", least=None),
        graph(
            "CPU of the hosts (percent of all cores)",
            Query(f"max by (host) (pptoolkit_host_cpu_ratio{{{_JOB}}})", "{{host}}"),
            unit="percentunit",
            about="All processes of each host.",
            most=1,
        ),
        graph("Steps done, by run", Query(_STEPS, "{{run_id}}"), unit="short", about="A flat line is a run that does not get on."),
    ],
)

BOARD = board(
    "pptoolkit-fleet",
    "pptoolkit: fleet of runs",
    "All runs that are scraped, side by side.",
    variables=[_RUNS],
    rows=[_NOW, _TABLES, _COMPARED],
)
