"""Takes the pictures of docs/report.md: ``python -m tests.support.pictures STOCK DDPFIX``, two traces of the demo."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from ddpfix.cli.main import main as ddpfix
from tests.support import browser
from tests.support.browser import Tab

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


def main(stock: str, cured: str) -> None:
    with tempfile.TemporaryDirectory() as folder, browser.started() as chromium:
        page = Path(folder, "page.html")
        assert ddpfix(["report", stock, cured, "-o", str(page)]) == 0
        for name, width, last, dark in (("comparison", 1200, "layers", False), ("phone", 360, "findings", True)):
            tab = Tab(chromium, page, width, 900, dark, touch=dark)
            tab.ready()
            end = tab.page.evaluate(f"document.querySelector('#{last}').getBoundingClientRect().bottom + scrollY")
            area = {"x": 0, "y": 0, "width": width, "height": end + 8}
            tab.page.screenshot(path=str(PICTURES / f"report-{name}.png"), clip=area, full_page=True)
            if not dark:
                layers = tab.page.locator("#layers")
                layers.screenshot(path=str(PICTURES / "report-layers.png"))
            tab.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
