from typing import Any

import pytest

from pptoolkit.errors import ConfigError
from pptoolkit.telemetry import RunInfo
from pptoolkit.telemetry.layout import Link, RankLayout
from pptoolkit.telemetry.settings import TelemetrySettings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"address": "0.0.0.0"}, "can be reached from other machines"),
        ({"address": "example.org"}, "can be reached from other machines"),
        ({"port": 70000}, "port=70000"),
        ({"pushgateway": "127.0.0.1:9091"}, 'write it like "http://127.0.0.1:9091"'),
        ({"pushgateway": "http://host:port"}, "is no address"),
        ({"flush_s": 0}, "flush_s=0 is out of range"),
        ({"segment_bytes": 10}, "segment_bytes=10 is too small"),
        ({"detail": "some"}, "every = 50"),
        ({"detail": {"every": 0}}, "every = 50"),
        ({"detail": {"each": 5}}, "every = 50"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_value_and_a_remedy(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TelemetrySettings(**wrong)


def test_detail_says_every_how_many_steps_are_kept() -> None:
    assert TelemetrySettings().every == 1
    assert TelemetrySettings(detail={"every": 50}).every == 50


def test_the_links_of_a_rank_follow_from_the_stages() -> None:
    middle = RankLayout(rank=1, stage_to_rank=(0, 1, 2), ranks=3)
    assert middle.stages == (1,)
    assert middle.incoming == (Link(0, 1), Link(2, 1))
    assert [link.kind for link in middle.incoming] == ["activation", "gradient"]


def test_stages_that_share_a_rank_have_no_link_between_them() -> None:
    # V schedule: rank 0 holds stages 0 and 3, rank 1 holds 1 and 2.
    bend = RankLayout(rank=1, stage_to_rank=(0, 1, 1, 0), ranks=2)
    assert bend.stages == (1, 2)
    assert bend.incoming == (Link(0, 1), Link(3, 2))


def test_a_replica_finds_its_own_neighbours() -> None:
    info = RunInfo(run_id="r", ranks=4, replicas=2, stage_to_rank=(0, 1))
    layout = RankLayout.from_info(info, 3)
    assert (layout.replica, layout.stages, layout.rank_of(0)) == (1, (1,), 2)
