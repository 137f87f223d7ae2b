"""The words of a command line: which of them is the yaml, which belong to a run option, which override the yaml."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from typing import Collection, List, Mapping, Optional, Sequence, Tuple

from . import parser
from .parser import Option


@dataclass
class Item:
    """A ``--name`` with what belongs to it; a name of "" stands for words that belong to nothing.

    Attributes:
        name: without the dashes in front.
        value: what follows the first "=", or None.
        words: the words that follow, up to the next item.
        option: the run option that the name stands for; None for an override of the yaml.
    """

    name: str
    value: Optional[str] = None
    words: List[str] = field(default_factory=list)
    option: Optional[Option] = None

    @property
    def bare(self) -> bool:
        return self.value is None and not self.words

    @property
    def texts(self) -> List[str]:
        return self.words if self.value is None else [self.value, *self.words]


def _is_item(word: str) -> bool:
    return word.startswith("--") and len(word) > 2


def _parted(word: str) -> Tuple[str, Optional[str]]:
    name, sign, value = word[2:].partition("=")
    return name, value if sign else None


def matching_options(name: str, options: Mapping[str, Option], keys: Collection[str]) -> List[Option]:
    """Return the run options that a name may stand for: none for an override of the yaml, several if it is unclear.

    The yaml's own keys are never taken for the beginning of a run option, which argparse does.
    """
    if name in options:
        return [options[name]]
    if name in keys or name.split(".")[0] in keys:
        return []
    plain = name.replace("-", "_")
    if plain in options:
        return [options[plain]]
    prefixed = [option for known, option in options.items() if plain and known.startswith(plain)]
    # What the release itself knows comes first: an abbreviation keeps its meaning.
    return [option for option in prefixed if option.real] or prefixed


def path_index(argv: Sequence[str], options: Mapping[str, Option]) -> Optional[int]:
    """Return the index of the yaml's path.

    It is the first word that is not taken by an option, as for argparse; unless that word follows an option which may
    have it for its value, is no yaml, and a later one is.
    """
    free: List[Tuple[int, bool]] = []
    taken, follows = 0.0, False
    for index, word in enumerate(argv):
        if _is_item(word):
            name, value = _parted(word)
            matches = matching_options(name, options, ())
            kind = matches[0].kind if len(matches) == 1 and value is None else ""
            taken = {"one": 1, "many": float("inf")}.get(kind, 0)
            follows = value is None
        elif taken > 0:
            taken -= 1
        elif not word.startswith("-"):
            free.append((index, follows))
            follows = False
    if not free:
        return None
    first, follows = free[0]
    later = [index for index, _ in free[1:] if _is_yaml(argv[index])]
    if follows and later and not _is_yaml(argv[first]):
        return later[0]
    return first


def _is_yaml(word: str) -> bool:
    return word.lower().endswith((".yaml", ".yml")) or os.path.isfile(word)


def items(argv: Sequence[str], path: int) -> List[Item]:
    """Return the command line without the path, as items in their order."""
    result = [Item("")]
    for index, word in enumerate(argv):
        if _is_item(word):
            result.append(Item(*_parted(word)))
        elif index != path:
            result[-1].words.append(word)
    return result if result[0].words else result[1:]


def assign(
    typed_items: List[Item], options: Mapping[str, Option], keys: Collection[str], arg_parser: argparse.ArgumentParser
) -> List[Item]:
    """Tell each item which run option it is, and leave it only the words which that option takes."""
    result: List[Item] = []
    for item in typed_items:
        choices = matching_options(item.name, options, keys) if item.name else []
        if len(choices) > 1:
            names = ", ".join(f"--{option.name}" for option in choices)
            parser.fail(arg_parser, f"ambiguous option: --{item.name} could be {names}; write it out")
        result.append(item)
        if choices:
            item.option = choices[0]
            rest = _spare(item)
            result.extend([Item("", words=rest)] if rest else [])
    return result


def _spare(item: Item) -> List[str]:
    """Take away, and return, the words that the option does not take."""
    assert item.option is not None
    if item.option.kind == "many" and item.value is None:
        return []
    count = 0 if item.value is not None else 1
    rest, item.words = item.words[count:], item.words[:count]
    return rest
