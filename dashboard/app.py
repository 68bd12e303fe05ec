"""The dashboard's entry script: ``streamlit run dashboard/app.py -- RUNS``. It only says which pages there are."""

import streamlit as st

from dashboard.entrance import may_enter
from dashboard.views import compare, health, links, live_metrics, rebalance, runs, stages, timeline, what_if

# A picture of our own: a named icon would be fetched from another host.
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="3" fill="#14171b"/>'
    '<path fill="#56b4e9" d="M2 3h4v2H2zM5 7h4v2H5zM8 11h3v2H8z"/><path fill="#e69f00" d="M10 3h4v2h-4zM10 7h4v2h-4zM12 11h2v2h-2z"/></svg>'
)

# The default top margin is a sixth of a laptop's screen; and what is being refreshed once a second must not fade each time.
STYLE = (
    ".block-container{padding-top:4rem;padding-bottom:2rem}"
    "[data-stale]{opacity:1!important;transition:none!important;animation:none!important}"
)


def main() -> None:
    """Set the page up and run the one that was asked for."""
    st.set_page_config(page_title="pptoolkit", page_icon=ICON, layout="wide", initial_sidebar_state="collapsed")
    st.html(f"<style>{STYLE}</style>")
    if not may_enter():
        return
    pages = [
        st.Page(runs.page, title="Runs", icon=":material/list:", url_path="runs", default=True),
        st.Page(timeline.page, title="Timeline", icon=":material/view_timeline:", url_path="timeline"),
        st.Page(stages.page, title="Stages", icon=":material/stacked_bar_chart:", url_path="stages"),
        st.Page(links.page, title="Links and memory", icon=":material/swap_horiz:", url_path="links"),
        st.Page(rebalance.page, title="Rebalance", icon=":material/balance:", url_path="rebalance"),
        st.Page(compare.page, title="Compare", icon=":material/compare_arrows:", url_path="compare"),
        st.Page(what_if.page, title="What-if", icon=":material/tune:", url_path="what-if"),
        st.Page(health.page, title="Health", icon=":material/ecg_heart:", url_path="health"),
        st.Page(live_metrics.page, title="Live metrics", icon=":material/monitor_heart:", url_path="live-metrics"),
    ]
    st.session_state["pages"] = {page.url_path or "runs": page for page in pages}
    st.navigation(pages, position="top").run()


main()
