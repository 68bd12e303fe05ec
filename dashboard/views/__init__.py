"""One module a page. Named ``views``: a folder called ``pages`` beside the entry script switches on Streamlit's own page finder."""
