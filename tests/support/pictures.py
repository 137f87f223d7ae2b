"""Takes the pictures of docs/report.md: ``python -m tests.support.pictures STOCK DDPFIX``, two traces of the demo.

Needs Chromium, which takes them without a screen.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from ddpfix.cli.main import main as ddpfix

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


def main(stock: str, cured: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        assert ddpfix(["report", stock, cured, "-o", str(page)]) == 0
        whole = page.read_text(encoding="utf-8")
        take(page, "report-comparison", 1400)
        # The layers alone.
        head, *parts = re.split("(?=<h2>)", whole)
        layers = next(part for part in parts if part.startswith("<h2>Skipped layers"))
        page.write_text(f"{head.partition('<body>')[0]}<body>{layers}</body></html>", encoding="utf-8")
        take(page, "report-layers", 440)


def take(page: Path, name: str, height: int) -> None:
    options = ("--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=20000")
    size, file = f"--window-size=1200,{height}", f"--screenshot={PICTURES / name}.png"
    subprocess.run(["chromium", *options, size, file, page.as_uri()], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
