import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptoolkit.errors import PlanError
from pptoolkit.layouts import LayoutStyle, read_layout, write_layout


@st.composite
def any_cuts(draw):
    layers = draw(st.integers(2, 60))
    return tuple(sorted(draw(st.sets(st.integers(1, layers - 1), max_size=12)))), layers


@given(any_cuts(), st.sampled_from(list(LayoutStyle)), st.booleans())
def test_what_was_written_is_read_back(model, style, ends):
    cuts, layers = model
    assert read_layout(write_layout(cuts, layers, style, ends=ends), style) == (cuts, layers)
    if style is not LayoutStyle.BALANCE or cuts:
        assert read_layout(write_layout(cuts, layers, style, ends=ends)) == (cuts, layers)


@pytest.mark.parametrize(
    ("text", "cuts", "layers"),
    [
        ("balance=[3, 3, 2]", (3, 6), 8),
        ("3,3,2", (3, 6), 8),
        ("[0, 3, 6, 8]", (3, 6), 8),
        ("parts = [0, 3, 6, 8]", (3, 6), 8),
        ("Et*3|t*3|t*2L", (4, 7), 10),
        ("Ett|(tt|)*3L", (3, 5, 7, 9), 10),
        ("E|t|L", (1, 2), 3),
    ],
)
def test_layouts_as_others_write_them(text, cuts, layers):
    assert read_layout(text) == (cuts, layers)


def test_a_layout_as_megatron_reads_it():
    assert write_layout((4, 7), 10, LayoutStyle.MEGATRON) == "Et*3|t*3|ttL"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[3, 0, 2]", "gives stage 1 0 layers"),
        ("Ett||L", "gives stage 1 0 layers"),
        ("Etx|L", "holds 'x'"),
        ("hello", "no layout|holds"),
        ("[]", "no stages"),
        ("[2.5, 3]", "whole numbers"),
        ("(t)*99999999", "so many layers"),
    ],
)
def test_what_is_no_layout_says_why(text, words):
    with pytest.raises(PlanError, match=words):
        read_layout(text)


def test_cuts_that_do_not_fit_are_not_written():
    with pytest.raises(PlanError, match="do not fit 4 layers"):
        write_layout((2, 2), 4, LayoutStyle.BALANCE)
    with pytest.raises(PlanError, match="both embedding and head"):
        write_layout((), 1, LayoutStyle.MEGATRON)
