from itertools import pairwise

from pptoolkit.planner.explain import describe_moves

NAMES = [f"block{i}" for i in range(8)]


def ranges(*cuts, layers=8):
    return [range(a, b) for a, b in pairwise((0, *cuts, layers))]


def test_one_move_is_told_with_both_stages_times():
    text = describe_moves(NAMES, [0.01] * 8, ranges(3), ranges(5))
    what, why = text.split(": ")
    assert what == "move block3 and block4 from stage 1 to stage 0"
    assert why == "stage 1 spends 50 ms a micro-batch, stage 0 30 ms; the slowest stage falls to 50 ms"


def test_several_moves_are_told_with_the_slowest_stage():
    text = describe_moves(NAMES, [0.01] * 7 + [0.05], ranges(2, 4), ranges(3, 7))
    what, why = text.split(": ")
    assert what == "move block2 from stage 1 to stage 0 and block4, block5 and block6 from stage 2 to stage 1"
    assert why.startswith("stage 2 spends 80 ms")


def test_many_moves_are_counted():
    text = describe_moves(NAMES, [0.01] * 8, ranges(1, 2, 3, 4), ranges(4, 5, 6, 7))
    assert text.startswith("move 6 layers so that the stages begin at layers 0, 4, 5, 6, 7")
