"""Stages and micro-batches of one run: what each stage computes, how evenly, and what it waits for."""

from grafana.board import JOB, RANK, RUN, Row, board
from grafana.panels import Query, bars, graph, heatmap, matrix

_RUN = f'job="{JOB}", run_id="$run", rank=~"$rank"'
_COMPUTE = "forward|backward|backward_input|backward_weight"
_PER_STEP = f"scalar(max(rate(pptoolkit_steps_total{{{_RUN}}}[$__rate_interval])))"


def _quantile(share: str, op: str) -> str:
    bucket = f'pptoolkit_op_duration_seconds_bucket{{{_RUN}, op=~"{op}"}}'
    return f"histogram_quantile({share}, sum by (le, stage, op) (rate({bucket}[$__rate_interval])))"


def _op_seconds(by: str, op: str) -> str:
    return f'sum by ({by}) (rate(pptoolkit_op_duration_seconds_sum{{{_RUN}, op=~"{op}"}}[$__rate_interval])) / {_PER_STEP}'


def _state(state: str) -> str:
    own = f'pptoolkit_rank_time_seconds_total{{{_RUN}, state=~"{state}"}}'
    all_states = f"pptoolkit_rank_time_seconds_total{{{_RUN}}}"
    return f"sum by (rank) (rate({own}[$__rate_interval])) / sum by (rank) (rate({all_states}[$__rate_interval]))"


def _micro_batches(op: str) -> str:
    return f'max by (stage, micro_batch) (pptoolkit_micro_batch_duration_seconds{{{_RUN}, op=~"{op}"}})'


_STAGES = Row(
    "Stages",
    panels=[
        bars(
            "Computing per step, by stage (seconds)",
            Query(_op_seconds("stage", _COMPUTE), "stage {{stage}}"),
            unit="s",
            about="Forward and backward of all micro-batches of a step. Even bars mean good cuts.",
        ),
        graph(
            "Computing per step, by stage and op (seconds)",
            Query(_op_seconds("stage, op", _COMPUTE), "stage {{stage}}: {{op}}"),
            unit="s",
            about="The same over time, forward and backward apart.",
            stacked=True,
        ),
        graph(
            "One forward or backward, typical (seconds)",
            Query(_quantile("0.5", _COMPUTE), "stage {{stage}}: {{op}}"),
            unit="s",
            about="Half of the ops are shorter. From a histogram, so as fine as its buckets.",
        ),
        graph(
            "One forward or backward, slow ones (seconds)",
            Query(_quantile("0.99", _COMPUTE), "stage {{stage}}: {{op}}"),
            unit="s",
            about="One op in a hundred is longer. Far above the typical one: jitter, stragglers, or another job on the machine.",
        ),
    ],
)

_MICRO_BATCHES = Row(
    "Micro-batches of the last step",
    panels=[
        matrix(
            "Forward, by stage and micro-batch (seconds)",
            Query(_micro_batches("forward"), table=True),
            row="stage",
            column="micro_batch",
            unit="s",
            about="Stages down, micro-batches across. Told while a step has at most 64 micro-batches.",
        ),
        matrix(
            "Backward, by stage and micro-batch (seconds)",
            Query(_micro_batches("backward|backward_input|backward_weight"), table=True),
            row="stage",
            column="micro_batch",
            unit="s",
            about="Stages down, micro-batches across; of split backwards, the longer part.",
        ),
        heatmap(
            "How long forwards take (seconds)",
            Query(
                f'sum by (le) (increase(pptoolkit_op_duration_seconds_bucket{{{_RUN}, op="forward"}}[$__rate_interval]))',
                "{{le}}",
                heatmap=True,
            ),
            unit="s",
            about="All stages together. Several bands are stages of unequal work; a wide band is jitter.",
        ),
        heatmap(
            "How long backwards take (seconds)",
            Query(
                f'sum by (le) (increase(pptoolkit_op_duration_seconds_bucket{{{_RUN}, op=~"backward.*"}}[$__rate_interval]))',
                "{{le}}",
                heatmap=True,
            ),
            unit="s",
            about="All stages together.",
        ),
    ],
)

_WAITING = Row(
    "Waiting and everything else",
    panels=[
        graph(
            "Waiting for another stage, by rank (percent of the step)",
            Query(_state("recv_wait|send_wait"), "rank {{rank}}"),
            unit="percentunit",
            about="The rank that waits least is the one that the others wait for.",
            most=1,
        ),
        graph(
            "Longest waits for a tensor (seconds)",
            Query(_quantile("0.95", "recv"), "stage {{stage}}: receiving"),
            unit="s",
            about="Of twenty waits, one is longer.",
        ),
        graph(
            "Collectives, optimizer and data, by rank (seconds per step)",
            Query(_op_seconds("rank, op", "reduce|optimizer|data"), "rank {{rank}}: {{op}}"),
            unit="s",
            about="Work of the whole rank, outside the pipeline's schedule.",
            stacked=True,
        ),
        graph(
            "Host and unattributed time, by rank (percent of the step)",
            Query(_state("host"), "rank {{rank}}: host"),
            Query(_state("unattributed"), "rank {{rank}}: unattributed"),
            unit="percentunit",
            about="Host: Python and the schedule's own bookkeeping. Unattributed: what nothing explains.",
        ),
    ],
)

BOARD = board(
    "pptoolkit-stages",
    "pptoolkit: stages and micro-batches",
    "What each stage computes, how evenly, and what it waits for.",
    variables=[RUN, RANK],
    rows=[_STAGES, _MICRO_BATCHES, _WAITING],
)
