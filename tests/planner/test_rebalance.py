"""When a running training is cut anew, and what is said of it: on runs whose truth is known."""

import random

import pytest

from pptoolkit.analysis.segments import segments_of
from pptoolkit.errors import ConfigError, RunError
from pptoolkit.planner.compare import compare
from pptoolkit.planner.rebalance import AutoRebalance, PlanWatch, describe_achievement
from pptoolkit.run import Run
from pptoolkit.telemetry import EventWriter
from tests.analysis.synthetic_run import Truth, synthetic_events, true_step_s, write_run

STEPS = 24
HEAVY_FIRST = (25, 5, 5, 5, 5, 5, 5, 5)


def of_ms(layers_ms, **more):
    return Truth(forward_s=[ms / 3e3 for ms in layers_ms], steps=STEPS, **more)


def watch(run, **settings):
    return PlanWatch(run.directory, AutoRebalance(**settings))


def look(run, *, steps=2000):
    return watch(run).look(step=STEPS, steps=steps)


def recut(run, truth, plan):
    """Let the run go on under another plan, as a trainer does: run.json tells of it, then come the events of ``truth``."""
    before = [segment.model_dump(mode="json") for segment in segments_of(run.directory.read_info())]
    begun = {"first_step": STEPS, "plan": plan.to_dict(), "moving_s": 0.5, "moved_bytes": 1}
    run.directory.update_info(plan=plan.to_dict(), segments=[*before, begun])
    for rank, events in enumerate(synthetic_events(truth)):
        writer = EventWriter(run.directory, rank=rank)
        late = 100_000_000_000
        writer.append([e._replace(step=e.step + STEPS, start_ns=e.start_ns + late, end_ns=e.end_ns + late) for e in events if e.step >= 0])
        writer.close()


def test_an_uneven_run_is_cut_anew_and_the_sentence_says_what_for(tmp_path):
    truth = of_ms(HEAVY_FIRST, cuts=[4], noise=0.02)
    decision = look(write_run(tmp_path / "run", truth))
    assert decision.plan.cuts == (2,)
    assert decision.plan.prediction.step_time_s == pytest.approx(true_step_s(truth, (2,)), rel=0.03)
    assert decision.sentence.startswith(f"step {STEPS}: cuts [4] -> [2], predicted ")
    assert "saved in the 1976 steps left, moving costs about" in decision.sentence


@pytest.mark.parametrize("seed", range(6))
def test_a_balanced_run_is_never_cut_anew_however_much_it_jitters(tmp_path, seed):
    noise = random.Random(seed).uniform(0.01, 0.25)
    decision = look(write_run(tmp_path / "run", of_ms((5,) * 8, cuts=[2, 4, 6], noise=noise, seed=seed, data_s=0.002)))
    assert decision.plan is None
    assert decision.sentence.startswith(f"step {STEPS}: cuts [2, 4, 6] stay: ")


def test_a_gain_that_the_steps_left_do_not_pay_for_is_left_alone(tmp_path):
    # The first step took 9 more: so long would building anew take.
    run = write_run(tmp_path / "run", of_ms(HEAVY_FIRST, cuts=[4], noise=0.02, first_step_factor=10.0))
    assert look(run).plan is not None
    decision = look(run, steps=STEPS + 5)
    assert decision.plan is None
    assert "in the 5 steps left, and moving costs about" in decision.sentence


def test_a_run_without_usable_steps_waits(tmp_path):
    decision = look(write_run(tmp_path / "run", of_ms(HEAVY_FIRST, cuts=[4], silent_ranks=[1])))
    assert decision.plan is None
    assert "no step is complete on all ranks yet" in decision.sentence
    assert decision.next_step >= STEPS + 20


def test_cuts_that_were_left_are_taken_up_again_only_where_they_were_faster(tmp_path):
    run = write_run(tmp_path / "run", of_ms(HEAVY_FIRST, cuts=[4], noise=0.01))
    following = watch(run)
    first = following.look(step=STEPS, steps=2000)
    # By these costs cuts [4] would now be the best, but they were left with slower steps than these.
    recut(run, of_ms((4, 4, 8, 8, 5, 5, 5, 5), cuts=[2], noise=0.01), first.plan)
    assert Run.open(tmp_path / "run").suggest()[0].plan.cuts == (4,)
    second = following.look(step=2 * STEPS, steps=2000)
    assert second.plan is None
    assert "cuts [4] were left before, with " in second.sentence


def test_cuts_that_were_faster_are_taken_up_again(tmp_path):
    run = write_run(tmp_path / "run", of_ms(HEAVY_FIRST, cuts=[4], noise=0.01))
    following = watch(run)
    first = following.look(step=STEPS, steps=2000)
    recut(run, of_ms((5, 5, 30, 30, 10, 10, 10, 10), cuts=[2], noise=0.01), first.plan)
    assert following.look(step=2 * STEPS, steps=2000).plan.cuts == (4,)


def test_looks_become_rarer_with_every_re_cut_and_where_looking_costs_much(tmp_path):
    run = write_run(tmp_path / "run", of_ms(HEAVY_FIRST, cuts=[4], noise=0.02))
    following = watch(run, every=10_000)  # so many that looking itself costs nothing beside them
    first = following.look(step=STEPS, steps=2000)
    assert first.next_step == STEPS + 2 * 10_000
    recut(run, of_ms(HEAVY_FIRST, cuts=[2]), first.plan)
    assert following.look(step=2 * STEPS, steps=2000).next_step == 2 * STEPS + 2 * 10_000
    # Steps of 0.1 ms: looking takes more than 1 % of twenty of them.
    short = write_run(tmp_path / "short", of_ms((0.01,) * 8, cuts=[4]))
    assert look(short).next_step > STEPS + 20


def test_what_came_stands_beside_what_was_promised(tmp_path):
    run = write_run(tmp_path / "run", of_ms(HEAVY_FIRST, cuts=[4], noise=0.02))
    following = watch(run)
    plan = following.look(step=STEPS, steps=2000).plan
    assert following.achieved() is None
    recut(run, of_ms(HEAVY_FIRST, cuts=[2], noise=0.02, seed=1), plan)
    found = following.achieved()
    assert found.within
    said = describe_achievement(found, run.directory.read_info())
    assert said.startswith(f"re-cut at step {STEPS}, cuts [4] -> [2]: before ")
    assert "inside the predicted interval; moving took 0.5 s" in said


def test_readers_keep_the_steps_of_different_plans_apart(tmp_path):
    written = write_run(tmp_path / "run", of_ms(HEAVY_FIRST, cuts=[4], noise=0.02))
    plan = look(written).plan
    before = Run.open(tmp_path / "run").report()
    recut(written, of_ms(HEAVY_FIRST, cuts=[2], noise=0.02), plan)
    run = Run.open(tmp_path / "run")
    report = run.report()
    assert run.steady().windows.index.min() == STEPS + 1  # the first one builds
    assert [row.layers for row in report.stages] == [(0, 2), (2, 8)]
    assert report.step_time.median < 0.9 * before.step_time.median
    # Rank 0 has half the work since the re-cut: no change of rank 0.
    assert report.changes == ()
    assert run.suggest().no_change.conclusive
    other = write_run(tmp_path / "other", of_ms(HEAVY_FIRST, cuts=[4], noise=0.02))
    assert [side.cuts for side in (compare(other, run).before, compare(other, run).after)] == [(4,), (2,)]


def test_until_a_step_under_the_new_plan_counts_the_old_one_is_what_is_reported(tmp_path):
    written = write_run(tmp_path / "run", of_ms(HEAVY_FIRST, cuts=[4], noise=0.02))
    plan = look(written).plan
    written.directory.update_info(
        plan=plan.to_dict(),
        segments=[{"first_step": 0, "plan": written.info.plan}, {"first_step": STEPS, "plan": plan.to_dict()}],
    )
    run = Run.open(tmp_path / "run")
    assert run.info.read_plan().cuts == (2,)
    assert run.report().plan["cuts"] == [4]
    assert run.layer_costs().missing == ()


def test_segments_that_cannot_be_read_are_an_error_that_names_the_run(tmp_path):
    written = write_run(tmp_path / "run", of_ms((5,) * 8, cuts=[4]))
    written.directory.update_info(segments=[{"plan": {}}])
    with pytest.raises(RunError, match="run\\.json of run: segments"):
        Run.open(tmp_path / "run")


def test_looking_more_often_than_steps_become_steady_is_refused():
    with pytest.raises(ConfigError, match="every=3 in AutoRebalance is out of range"):
        AutoRebalance(every=3)
