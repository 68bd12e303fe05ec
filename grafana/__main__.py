"""``python -m grafana``: write the dashboards into grafana/dashboards/ after a change to grafana/boards/."""

import json

from grafana import DASHBOARDS
from grafana.boards import BOARDS

for name, body in BOARDS.items():
    (DASHBOARDS / name).write_text(json.dumps(body, indent=2) + "\n")
    print(f"wrote {DASHBOARDS / name}")
