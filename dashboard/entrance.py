"""The entrance: where a token is set, nothing of a run is shown to a session before it has said it."""

import hmac
import os
import time

import streamlit as st

from dashboard.launch import TOKEN_VARIABLE

_PAUSE_S = 1.0  # after a wrong answer: guessing takes longer than anyone lives


def may_enter() -> bool:
    """Return whether this session may see the runs; ask for the token where it may not yet."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token or st.session_state.get("entered"):
        return True
    st.markdown("#### pptoolkit")
    st.caption("This dashboard is open to those who know its token.")
    with st.form("entrance", width=420):
        said = st.text_input("Token", type="password", key="token")
        asked = st.form_submit_button("Enter", type="primary")
    if asked:
        if is_token(said or "", token):
            st.session_state["entered"] = True
            st.rerun()
        time.sleep(_PAUSE_S)
        st.markdown(":material/lock: That is not the token.")
    return False


def is_token(said: str, token: str) -> bool:
    """Compare in a time that does not tell how much of it was right."""
    return hmac.compare_digest(said.encode(), token.encode())
