import numpy as np
import pytest

from pptoolkit.errors import ScheduleError
from pptoolkit.simulator.replay import Edge, ReplayGraph


def play(graph, gap, own, weight):
    columns = (np.asarray(values, dtype=float).reshape(-1, 1) for values in (gap, own, weight))
    ready, end = graph.play(*columns)
    return ready[:, 0].tolist(), end[:, 0].tolist()


def test_a_message_is_waited_for():
    # rank 0: A (2 s); rank 1: B (1 s), then C, which needs A's message 3 s later.
    graph = ReplayGraph([-1, -1, 1], [Edge(target=2, node=0)])
    assert play(graph, [0, 0, 0], [2, 1, 0], [3]) == ([0, 0, 1], [2, 1, 5])


def test_both_ends_of_a_rendezvous_wait_for_each_other():
    graph = ReplayGraph([-1, -1, 0, 1], [Edge(2, 3, from_ready=True), Edge(3, 2, from_ready=True)])
    assert play(graph, [0, 0, 0, 0], [4, 1, 0.5, 0.5], [0.5, 0.5])[1] == [4, 1, 4.5, 4.5]


def test_gaps_come_before_a_node_and_lanes_are_independent():
    graph = ReplayGraph([-1, 0], [])
    _, end = graph.play(np.array([[0.0, 1.0], [0.5, 0.5]]), np.array([[1.0, 1.0], [2.0, 4.0]]), np.zeros((0, 2)))
    assert end.tolist() == [[1.0, 2.0], [3.5, 6.5]]


def test_a_circle_is_refused():
    with pytest.raises(ScheduleError, match="waits for itself"):
        ReplayGraph([-1, -1], [Edge(0, 1), Edge(1, 0)])
