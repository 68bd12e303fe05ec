"""``pptoolkit train --auto-rebalance`` as it is typed."""

import re
from pathlib import Path

from pptoolkit.plan import Plan
from pptoolkit.run import Run
from tests.support.jobs import started, write_job


def test_the_option_reaches_the_ranks_and_what_became_of_it_is_said(tmp_path: Path) -> None:
    config = write_job(tmp_path, steps=12, port=19350)
    config.write_text(config.read_text().replace("[plan]", "[plan]\nrebalance_every = 8"))
    with started(tmp_path, "train", "job.toml", "--nproc", "2", "--auto-rebalance", limit_s=110.0) as command:
        ended = command.end()
    assert ended.code == 0, ended.output
    run = Run.open(tmp_path / "runs" / "job")
    assert run.info.config["plan"]["auto_rebalance"] is True
    said = re.search(r"(not cut anew; at the last look, )?step 8: cuts \[2\] (stay: .+|-> \[\d\], predicted .+)", ended.output)
    assert said is not None, ended.output
    # Four equal layers: whether noise looked like a gain or not, run.json, plan.toml and the screen tell the same.
    stayed = said[1] is not None
    assert len(run.segments) == (1 if stayed else 2)
    assert (Plan.load(run.directory.plan_path).cuts == (2,)) is stayed
    assert run.info.read_plan() == Plan.load(run.directory.plan_path)
