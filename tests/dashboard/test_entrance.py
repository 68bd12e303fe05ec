"""A dashboard with a token shows nothing of a run before it was said."""

import sys
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.launch import TOKEN_VARIABLE
from tests.dashboard.synthetic import SyntheticRun

TOKEN = "open-sesame-1234"


def _gate() -> None:
    from dashboard.entrance import may_enter

    if may_enter():
        from dashboard.views import health

        health.page()


@pytest.fixture
def app(runs: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    SyntheticRun(root=runs, run_id="private").train(6)
    monkeypatch.setattr(sys, "argv", ["app.py", str(runs)])
    monkeypatch.setattr("dashboard.entrance._PAUSE_S", 0.0)
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    return AppTest.from_function(_gate, default_timeout=20).run()


def test_without_the_token_nothing_of_a_run_is_shown(app: AppTest) -> None:
    app.text_input(key="token").set_value("wrong")
    app.button[0].click().run()
    assert not app.exception
    assert not app.selectbox
    assert not app.dataframe
    assert "That is not the token" in app.markdown[-1].value


def test_with_the_token_the_page_opens(app: AppTest) -> None:
    app.text_input(key="token").set_value(TOKEN)
    app.button[0].click().run()
    assert not app.exception
    assert app.selectbox[0].value == "private"
