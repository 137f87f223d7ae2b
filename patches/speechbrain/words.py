"""The words of a command line: which of them belong to a run option, in full or abbreviated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Collection, List, Mapping, Optional, Sequence

from .parser import Option


@dataclass
class Item:
    """Words that belong together: a ``--name`` with its values, or others.

    Attributes:
        option: the run option that the first one names; None for an override of the yaml.
    """

    words: List[str]
    option: Optional[Option] = None

    @property
    def texts(self) -> List[str]:
        _, sign, value = self.words[0].partition("=")
        return [value, *self.words[1:]] if sign else self.words[1:]

    def takes(self) -> bool:
        """Return whether a further word belongs to it."""
        if self.option is None:
            return True
        return "=" not in self.words[0] and (self.option.kind == "many" or len(self.words) == 1)

    def argv(self) -> List[str]:
        """Return the words with the name of the run option in full."""
        if self.option is None:
            return self.words
        _, sign, value = self.words[0].partition("=")
        return [f"--{self.option.name}{sign}{value}", *self.words[1:]]


def items(argv: Sequence[str], path: str, options: Mapping[str, Option], keys: Collection[str]) -> List[Item]:
    """Return the command line without the yaml's path, as items in their order."""
    found: List[Item] = []
    rest = list(argv)
    rest.remove(path)
    for word in rest:
        if word.startswith("--"):
            found.append(Item([word], _option(word[2:].partition("=")[0], options, keys)))
        elif found and found[-1].takes():
            found[-1].words.append(word)
        else:
            found.append(Item([word]))
    return found


def _option(name: str, options: Mapping[str, Option], keys: Collection[str]) -> Optional[Option]:
    """Return the run option that a name stands for; None for a key of the yaml, and for what is unclear."""
    if name in options or name in keys:
        return options.get(name)
    plain = name.replace("-", "_")
    if plain in options:
        return options[plain]
    prefixed = [option for known, option in options.items() if plain and known.startswith(plain)]
    # What the release itself knows comes first: an abbreviation keeps its meaning.
    prefixed = [option for option in prefixed if option.real] or prefixed
    return prefixed[0] if len(prefixed) == 1 else None
