"""The report: figures with their targets, as tables on the screen and as JSON."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Dict, Iterable, List, Optional

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """One measured number. ``target`` is the most that it may be; None where it only explains another one."""

    name: str
    value: float
    unit: str
    target: Optional[float] = None
    note: str = ""

    @property
    def met(self) -> Optional[bool]:
        return None if self.target is None else self.value <= self.target


@dataclass(frozen=True)
class Section:
    """The figures that answer one question."""

    title: str
    figures: List[Figure]
    seconds: float


def machine() -> Dict[str, Any]:
    """What the figures were taken on: their ratios travel, the numbers themselves do not."""
    return {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        **{name: _version(name) for name in ("torch", "transformers", "wrapt", "packaging", "PyYAML")},
    }


def _version(name: str) -> Optional[str]:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def as_data(sections: Iterable[Section], about: Dict[str, Any]) -> Dict[str, Any]:
    return {
        "machine": about,
        "sections": [
            {
                "title": section.title,
                "seconds": round(section.seconds, 1),
                "figures": [{**asdict(figure), "met": figure.met} for figure in section.figures],
            }
            for section in sections
        ],
    }


def show_machine(console: Console, about: Dict[str, Any]) -> None:
    console.print(", ".join(f"{name} {value}" for name, value in about.items()), highlight=False)


def show(console: Console, section: Section) -> None:
    table = Table(title=f"{section.title} ({section.seconds:.0f} s)", title_justify="left", title_style="bold")
    table.add_column("what")
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("at most", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("note")
    for figure in section.figures:
        limit = "" if figure.target is None else f"{figure.target:g} {figure.unit}"
        table.add_row(figure.name, f"{_number(figure.value)} {figure.unit}", limit, _mark(figure), figure.note)
    console.print(table)


def _number(value: float) -> str:
    """Three digits that count, and no powers of ten."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 4
    return f"{value:.{digits}f}"


def _mark(figure: Figure) -> str:
    return {None: "", True: "[green]met[/green]", False: "[red]missed[/red]"}[figure.met]
