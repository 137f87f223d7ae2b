"""The words of a command line: which of them belong to a run option, in full or abbreviated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Collection, List, Mapping, Optional, Sequence

from .parser import Option


@dataclass
class Item:
    """A ``--name`` with what belongs to it, or words that belong to nothing.

    Attributes:
        typed: the first word as it was typed; "" where the words belong to nothing.
        words: the words that follow, up to the next item.
        option: the run option that the name stands for; None for an override of the yaml.
    """

    typed: str = ""
    words: List[str] = field(default_factory=list)
    option: Optional[Option] = None

    @property
    def texts(self) -> List[str]:
        _, sign, value = self.typed.partition("=")
        return [value, *self.words] if sign else self.words

    def argv(self) -> List[str]:
        """Return the words for the release's parser: a run option in full, no flag, and none that it does not have."""
        if self.option is None:
            return [*([self.typed] if self.typed else []), *self.words]
        if self.option.kind == "flag" or not self.option.real:
            return []
        _, sign, value = self.typed.partition("=")
        return [f"--{self.option.name}{sign}{value}", *self.words]


def items(argv: Sequence[str], path: str, options: Mapping[str, Option], keys: Collection[str]) -> List[Item]:
    """Return the command line without the yaml's path, as items in their order."""
    found = [Item()]
    rest = list(argv)
    rest.remove(path)
    for word in rest:
        if word.startswith("--"):
            found.append(Item(word, option=_option(word[2:].partition("=")[0], options, keys)))
        elif found[-1].option is not None and _is_full(found[-1]):
            found.append(Item(words=[word]))
        else:
            found[-1].words.append(word)
    return found


def _is_full(item: Item) -> bool:
    """Return whether the run option of an item takes no further word."""
    assert item.option is not None
    if "=" in item.typed:
        return True
    return item.option.kind != "many" and bool(item.words)


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
