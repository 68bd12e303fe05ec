"""What Prometheus and Grafana are given: rules, dashboards and provisioning files, all data. Imports nothing of the toolkit."""

from pathlib import Path

FOLDER = Path(__file__).parent
RULES = FOLDER / "rules" / "pptoolkit.rules.yml"
DASHBOARDS = FOLDER / "dashboards"
