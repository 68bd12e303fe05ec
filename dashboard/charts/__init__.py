"""Charts: data frame in, figure out. Nothing here imports Streamlit, so a notebook can draw the same pictures."""
