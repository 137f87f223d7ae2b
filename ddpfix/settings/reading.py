"""Settings: where they come from, which values they take, and which one wins.

The first of these wins: arguments of ``activate()`` (the command line passes its own as environment variables),
``DDPFIX_*`` variables that are not empty, ``[tool.ddpfix]`` in the ``pyproject.toml`` of the working directory, the
default. A switch ``DDPFIX_<PATCH>=0`` wins over all of them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Dict, Iterable, List, Mapping, Optional, Sequence

from ddpfix.settings import gone
from ddpfix.settings.known import LONGEST, OBSERVING, PREFIX, SETTINGS, TRAINING, Setting, SettingsError, shown

__all__ = ["PREFIX", "SETTINGS", "SWITCH", "Setting", "Settings", "SettingsError", "read", "switch_name", "wanted"]

SWITCH = ("0", "1", "force")
# A source of values: who passes one is there to read an error.
_ARGUMENT = "argument "
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def wanted(name: str, value: str, when: Sequence[str]) -> bool:
    """Return whether a value is among ``when``, where a setting's kind stands for all that cannot be listed."""
    return value in when or (value not in _BY_NAME[name].values and _BY_NAME[name].kind in when)


def switch_name(patch: str) -> str:
    """Return the environment variable of one patch: ``transformers.layerdrop`` is DDPFIX_TRANSFORMERS_LAYERDROP."""
    return PREFIX + patch.upper().replace(".", "_").replace("-", "_")


class Settings:
    """The values in force, and for each one that is not the default, where it came from.

    Args:
        values: by the names of the settings.
        switches: by patch.
        sources: where a value or a switch came from, by its name.
        gone: the lines about removed names, and about typos that switch nothing off, which the caller shows.
    """

    def __init__(
        self,
        values: Mapping[str, str],
        switches: Optional[Mapping[str, str]] = None,
        sources: Optional[Mapping[str, str]] = None,
        gone: Sequence[str] = (),
    ) -> None:
        self.values, self.switches, self.sources = values, switches or {}, sources or {}
        self.gone = gone

    def __getitem__(self, name: str) -> str:
        return self.values[name]

    def switched(self, patch: str) -> Optional[str]:
        return self.switches.get(patch)

    def number(self, name: str) -> Optional[int]:
        """Return a setting that is off or a number; None stands for off."""
        return None if self.values[name] == "off" else int(self.values[name])

    def seconds(self) -> float:
        return float(self.values["timeout"])

    def seed(self) -> Optional[int]:
        return None if self.values["seed"] == "auto" else int(self.values["seed"])


def read(
    arguments: Mapping[str, object],
    patches: Iterable[str],
    environ: Optional[Mapping[str, str]] = None,
    folder: Path = Path(),
) -> Settings:
    """Settings from arguments, environment and pyproject.toml; raises :class:`SettingsError` for what is unknown.

    What only watches a training keeps its default where a variable or the file has a typo, and a line says so.
    """
    reader = _Reader({switch_name(patch): patch for patch in patches})
    if environ is None:
        environ = {} if sys.flags.ignore_environment else os.environ
    reader.table(_table(folder / "pyproject.toml"), "pyproject.toml [tool.ddpfix] ")
    # An empty variable says nothing, as everywhere in a shell, and as with DDPFIX itself.
    given = [name for name, value in environ.items() if name.startswith(PREFIX) and value.strip()]
    for variable in sorted(given, key=gone.age):
        reader.set(variable[len(PREFIX) :], environ[variable], variable)
    reader.table({name: value for name, value in arguments.items() if value is not None}, _ARGUMENT)
    reader.off_switches(environ)
    return Settings(reader.values, reader.switches, reader.sources, reader.gone)


def _table(file: Path) -> Mapping[str, object]:
    """Return the table ``[tool.ddpfix]``, empty where there is none; raise SettingsError for a bad one."""
    try:
        # A pipe of that name would be waited for.
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
    except (OSError, UnicodeDecodeError):
        return {}
    # Most projects have no settings of ours: their file is not parsed, and errors in it are not reported.
    if "tool.ddpfix" not in text:
        return {}
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        tool = tomllib.loads(text).get("tool", {})
    except (ValueError, RecursionError) as error:
        # Of the latter kinds are numbers with thousands of digits, and deep nesting.
        raise SettingsError(f"{file}: {error}") from None
    # Another tool's business is none of ours.
    found = tool.get("ddpfix", {}) if isinstance(tool, dict) else {}
    if not isinstance(found, dict):
        raise SettingsError(f"{file}: [tool.ddpfix] must be a table")
    return found


def _now(earlier: Optional[str]) -> str:
    """Return what a renamed patch or setting is called now; empty for any other."""
    now = gone.RENAMED.get(earlier or "", "")
    return now[len(PREFIX) :] if now.startswith(PREFIX) else now


class _Reader:
    def __init__(self, switches_by_variable: Mapping[str, str]) -> None:
        self.by_variable = switches_by_variable
        self.values: Dict[str, str] = {setting.name: setting.default for setting in SETTINGS}
        self.switches: Dict[str, str] = {}
        self.sources: Dict[str, str] = {}
        self.gone: List[str] = []

    def set(self, key: str, value: str, source: str) -> None:
        """One value; ``key`` is a setting's name, or a patch id with dots or underscores."""
        name = key.lower().replace("-", "_")
        setting = _BY_NAME.get(name)
        if setting is not None:
            former = f"{setting.variable}={value.strip().lower()}"
            if former in gone.VALUES:
                self.gone.append(gone.answer(former, f"{source}={value.strip()}"))
                value = gone.VALUES[former][0]
            try:
                self.values[name] = setting.validate(value, source)
                self.sources[name] = source
            except SettingsError as error:
                if name in TRAINING or source.startswith(_ARGUMENT):
                    raise
                self.gone.append(f"{error}. {self.values[name]} is used instead")
            return
        patch = self.by_variable.get(switch_name(key))
        if patch is None:
            earlier = gone.of_variable(switch_name(key))
            if earlier is None:
                self._refuse(key, source)
                return
            self.gone.append(gone.answer(earlier, source))
            if earlier in gone.RENAMED:
                self.set(_now(earlier), value, source)
            return
        word = {"true": "1", "false": "0", "on": "1", "off": "0"}.get(value.strip().lower(), value.strip().lower())
        if word in SWITCH:
            self.switches[patch], self.sources[patch] = word, source
            return
        text = f"{shown(source, value)}: expected {', '.join(SWITCH)}"
        if patch not in OBSERVING or source.startswith(_ARGUMENT):
            raise SettingsError(text)
        self.gone.append(f"{text}. It is ignored")

    def _refuse(self, key: str, source: str) -> None:
        """Raise for an unknown name; one that can only stand for what watches a training is left out, with a line."""
        names, is_argument = self._close(switch_name(key[:LONGEST])), source.startswith(_ARGUMENT)
        # activate(unused=...): the keywords are the variables without their prefix.
        shown = [name.lower()[len(PREFIX) :] if is_argument else name for name in names]
        hint = f"did you mean {' or '.join(shown)}?" if shown else "python -m ddpfix plan --help lists them"
        if is_argument or not names or not all(map(self._watches, names)):
            raise SettingsError(f"{source[: 2 * LONGEST]} is not a setting ({hint})")
        self.gone.append(f"{source[: 2 * LONGEST]} is not a setting: it is ignored ({hint})")

    def _close(self, variable: str) -> List[str]:
        """Return the variables that come nearest to one: by their letters, or patches that are called so."""
        names = [*(s.variable for s in SETTINGS), *self.by_variable]
        former = {switch_name(each): switch_name(now) for each, now in gone.RENAMED.items() if each[:1].islower()}
        word = variable[len(PREFIX) - 1 :]
        called = [former.get(name, name) for name in (*self.by_variable, *former) if name.endswith(word)]
        return list(dict.fromkeys([*called[:3], *close(variable, names, PREFIX)]))[:3]

    def _watches(self, variable: str) -> bool:
        name = variable[len(PREFIX) :].lower()
        return self.by_variable.get(variable) in OBSERVING or (name in _BY_NAME and name not in TRAINING)

    def table(self, table: Mapping[str, object], where: str) -> None:
        for key, value in sorted(table.items(), key=lambda item: gone.age(switch_name(item[0]))):
            # Python writes no number of thousands of digits.
            if isinstance(value, (list, dict)) or (isinstance(value, int) and abs(value) >= 2**63):
                raise SettingsError(f"{where}{key}: expected a text or a number")
            self.set(key, str(value), where + key)

    def off_switches(self, environ: Mapping[str, str]) -> None:
        ours = ((name, value) for name, value in environ.items() if name.upper().startswith(PREFIX))
        for variable, value in ours:
            patch = self.by_variable.get(variable.upper()) or _now(gone.of_variable(variable))
            if patch in self.by_variable.values() and value.strip().lower() in ("0", "false", "off"):
                self.switches[patch] = "0"
                self.sources[patch] = variable


def close(word: str, known: Iterable[str], prefix: str = "") -> List[str]:
    """Return the known words that come nearest to a word, which a prefix that all of them share does not."""
    # Its import would take a tenth of the time of waking up.
    import difflib

    found = difflib.get_close_matches(word[len(prefix) :], [name[len(prefix) :] for name in known], n=3)
    return [prefix + name for name in found]


def near(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the known words that come nearest to a word; empty where none is near."""
    found = close(word, known)
    return f"; did you mean {', '.join(found)}?" if found else ""
