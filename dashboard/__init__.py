"""The Streamlit dashboard: reads run directories, draws them, writes the next plan. Runs where torch is not installed."""
