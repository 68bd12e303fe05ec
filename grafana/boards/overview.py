"""Overview of one run: is it alive, how fast is it, where does its time go."""

from grafana.board import JOB, RUN, Row, board
from grafana.panels import BAD, WARN, Query, bars, graph, number, steps

_RUN = f'job="{JOB}", run_id="$run"'
_TIME = f"pptoolkit_rank_time_seconds_total{{{_RUN}}}"
_COMPUTE = f'pptoolkit_rank_time_seconds_total{{{_RUN}, state="compute"}}'
_BUBBLE = f"1 - sum(rate({_COMPUTE}[$__rate_interval])) / sum(rate({_TIME}[$__rate_interval]))"
_STEP = (
    f"max(rate(pptoolkit_step_duration_seconds_sum{{{_RUN}}}[$__rate_interval])"
    f" / rate(pptoolkit_step_duration_seconds_count{{{_RUN}}}[$__rate_interval]))"
)


def _quantile(share: str) -> str:
    bucket = f"pptoolkit_step_duration_seconds_bucket{{{_RUN}}}"
    return f"histogram_quantile({share}, sum by (le) (rate({bucket}[$__rate_interval])))"


_NOW = Row(
    "Now",
    across=4,
    height=4,
    panels=[
        number(
            "Ranks that answer",
            Query(f"count(up{{{_RUN}}} == 1)"),
            unit="short",
            about="Ranks whose endpoint answered the last scrape.",
            thresholds=steps((1, "green"), base=BAD),
        ),
        number(
            "Alerts firing",
            Query(f'count(ALERTS{{{_RUN}, alertstate="firing"}}) or vector(0)'),
            unit="short",
            about="Alerts of this run that fire now; each has a section in docs/runbook.md.",
            thresholds=steps((1, BAD)),
        ),
        number("Steps done", Query(f"max(pptoolkit_steps_total{{{_RUN}}})"), unit="short", about="Steps since the last start of the run."),
        number("Step time (seconds)", Query(_STEP), unit="s", about="Mean wall time of a step on the slowest rank.", decimals=3),
        number(
            "Samples per second",
            Query(f"sum(rate(pptoolkit_samples_total{{{_RUN}}}[$__rate_interval]))"),
            unit="short",
            about="Samples trained on per second, over all replicas; each counted once.",
            decimals=1,
        ),
        number("Loss", Query(f"max(pptoolkit_loss{{{_RUN}}})"), unit="none", about="Mean loss of the last step.", decimals=4),
        number(
            "Idle time (percent)",
            Query(_BUBBLE),
            unit="percentunit",
            about="Share of all ranks' time in which they do not compute: the bubble.",
            thresholds=steps((0.35, WARN), (0.6, BAD)),
            decimals=1,
        ),
        number(
            "Since the last step (seconds)",
            Query(f"max(pptoolkit_heartbeat_timestamp_seconds{{{_RUN}}} - pptoolkit_last_step_timestamp_seconds{{{_RUN}}})"),
            unit="s",
            about="From the end of the last step to the last heartbeat, of the rank where it is longest. A hang grows here.",
            thresholds=steps((30, WARN), (60, BAD)),
            decimals=1,
        ),
    ],
)

_PROGRESS = Row(
    "Progress",
    panels=[
        graph("Loss over time", Query(f"max(pptoolkit_loss{{{_RUN}}})", "loss"), unit="none", about="Mean loss of each step.", least=None),
        graph(
            "Gradient norm before clipping",
            Query(f"max(pptoolkit_gradient_norm{{{_RUN}}})", "gradient norm"),
            unit="none",
            about="Norm of all gradients of all stages together. Told when clipping is on.",
        ),
        graph(
            "Step time over time (seconds)",
            Query(_STEP, "mean, slowest rank"),
            Query(_quantile("0.5"), "half of the steps are faster"),
            Query(_quantile("0.95"), "95 % of the steps are faster"),
            unit="s",
            about="Wall time of a step. The two shares come from a histogram, so they are as fine as its buckets.",
        ),
        graph(
            "Throughput (samples and tokens per second)",
            Query(f"sum(rate(pptoolkit_samples_total{{{_RUN}}}[$__rate_interval]))", "samples per second"),
            Query(f"sum(rate(pptoolkit_tokens_total{{{_RUN}}}[$__rate_interval]))", "tokens per second"),
            unit="short",
            about="What the run trains on per second.",
        ),
        graph(
            "Learning rate",
            Query(f"max(pptoolkit_learning_rate{{{_RUN}}})", "learning rate"),
            unit="none",
            about="Learning rate of the first parameter group.",
        ),
        graph(
            "Restarts and checkpoint age (seconds)",
            Query(f"max(pptoolkit_restarts_total{{{_RUN}}})", "restarts"),
            Query(f"max(pptoolkit_checkpoint_age_seconds{{{_RUN}}})", "age of the last checkpoint"),
            unit="short",
            about="How often the processes were restarted, and how much work a failure would cost now.",
        ),
    ],
)

_TIME_SPENT = Row(
    "Where the time goes",
    panels=[
        graph(
            "Time of all ranks by what it went to (percent)",
            Query(
                f"sum by (state) (rate({_TIME}[$__rate_interval])) / scalar(sum(rate({_TIME}[$__rate_interval])))",
                "{{state}}",
            ),
            unit="percentunit",
            about="The parts sum to the wall time. Unattributed is time that nothing explains; it is shown, not spread.",
            stacked=True,
            most=1,
        ),
        graph(
            "Idle time against the schedule's own (percent)",
            Query(_BUBBLE, "measured"),
            Query(f"avg(pptoolkit_schedule_bubble_ratio{{{_RUN}}})", "what the schedule alone leaves idle"),
            unit="percentunit",
            about="The distance between the lines is what better cuts, faster links or quicker data loading could win.",
            most=1,
        ),
        bars(
            "Computing per step, by rank (seconds)",
            Query(
                f"sum by (rank) (rate({_COMPUTE}[$__rate_interval]))"
                f" / sum by (rank) (rate(pptoolkit_steps_total{{{_RUN}}}[$__rate_interval]))",
                "rank {{rank}}",
            ),
            unit="s",
            about="Own work of each rank, waiting left out. The longest bar sets the pace: the bottleneck.",
        ),
        graph(
            "Time computing, by rank (percent)",
            Query(
                f"sum by (rank) (rate({_COMPUTE}[$__rate_interval])) / sum by (rank) (rate({_TIME}[$__rate_interval]))",
                "rank {{rank}}",
            ),
            unit="percentunit",
            about="Share of each rank's step in which it computes.",
            most=1,
        ),
    ],
)

_HEALTH = Row(
    "Signs of life",
    panels=[
        graph(
            "Age of the heartbeat, by rank (seconds)",
            Query(f"time() - pptoolkit_heartbeat_timestamp_seconds{{{_RUN}}}", "rank {{rank}}"),
            unit="s",
            about="Comes from a thread of its own, so it goes on while training is stuck. Includes the difference of the hosts' clocks.",
            least=None,
            thresholds=steps((30, BAD)),
        ),
        graph(
            "Running time of the op in flight (seconds)",
            Query(
                f"pptoolkit_heartbeat_timestamp_seconds{{{_RUN}}} - on (rank, instance) group_right ()"
                f" (pptoolkit_inflight_op_start_timestamp_seconds{{{_RUN}}} > 0)",
                "rank {{rank}}: {{op}}",
            ),
            unit="s",
            about="What each rank did at its last heartbeat, and since when. In a hang, victims wait in recv; the culprit does not.",
        ),
        graph(
            "Events that telemetry dropped (per second)",
            Query(f"sum by (reason) (rate(pptoolkit_events_dropped_total{{{_RUN}}}[$__rate_interval]))", "{{reason}}"),
            unit="short",
            about="Training is not affected, but reports of these steps may be incomplete. Sampling is meant to drop.",
        ),
        graph(
            "Cost of telemetry (percent of one core)",
            Query(f"rate(pptoolkit_telemetry_seconds_total{{{_RUN}}}[$__rate_interval])", "rank {{rank}}"),
            unit="percentunit",
            about="CPU time of writing events and bringing metrics up to date.",
        ),
    ],
)

BOARD = board(
    "pptoolkit-run",
    "pptoolkit: overview of a run",
    "Is the run alive, how fast is it, and where does its time go.",
    variables=[RUN],
    rows=[_NOW, _PROGRESS, _TIME_SPENT, _HEALTH],
)
