"""A real browser without a screen, driven by playwright; a test without one is skipped and says how to have it."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from pathlib import Path
from typing import Any, Iterator, List, Optional

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOW = "apt-get install chromium, and pip install 'ddpfix[rest]'"


def executable() -> Optional[str]:
    return next(filter(None, map(shutil.which, NAMES)), None)


def missing() -> Optional[str]:
    """Why no browser can be started here, with the command that changes it; None if one can."""
    if importlib.util.find_spec("playwright") is None:
        return f"playwright is not installed: {HOW}"
    return None if executable() else f"no Chromium is installed: {HOW}"


@contextlib.contextmanager
def started() -> Iterator[Any]:
    """The browser, for as long as the context lasts."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # Chromium refuses to use its sandbox as root, which a container's user often is.
        browser = driver.chromium.launch(executable_path=executable(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A file shown at a size: what the browser complained of, and what it tried to load."""

    def __init__(self, browser: Any, file: Path, width: int, height: int, dark: bool, touch: bool = False) -> None:
        scheme = "dark" if dark else "light"
        self._context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, has_touch=touch, is_mobile=touch
        )
        self.page = self._context.new_page()
        self.complaints: List[str] = []
        self.requests: List[str] = []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self._measures = self._context.new_cdp_session(self.page)
        self._measures.send("Performance.enable", {"timeDomain": "threadTicks"})
        self.page.goto(file.resolve().as_uri())

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def ready(self) -> None:
        """Wait until all figures are drawn."""
        self.page.wait_for_selector("html[data-ready]", state="attached", timeout=120_000)

    def seconds(self) -> float:
        """What the main thread of the page has computed since it was opened."""
        metrics = self._measures.send("Performance.getMetrics")["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))

    def close(self) -> None:
        self._context.close()
