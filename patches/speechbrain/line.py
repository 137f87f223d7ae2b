"""One command line on its way through the parser, and the hooks by which fixes change it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any, Callable, Collection, Dict, List, Mapping, NoReturn, Optional, Sequence, Set

from ddpfix.patching.site import Registry, Site

from .parser import Option


@dataclass
class Item:
    """A ``--name`` with its values, or other words; without an option, the name is an override of the yaml."""

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


@dataclass
class Line:
    """One command line.

    Attributes:
        arg_parser: the release's parser; it ends the run where something is not accepted.
        options: the run options by name, those that only we know included.
        tree: the yaml's top level with its tags; empty where it cannot be read.
        items: the command line without the yaml, in its order.
        user_values: what was typed for each run option, as a truth value for flags and as text for others.
        values: the run options as they will be returned.
    """

    arg_parser: argparse.ArgumentParser
    options: Dict[str, Option]
    tree: Mapping[str, Any]
    path: str
    items: List[Item]
    user_values: Dict[str, Any] = field(default_factory=dict)
    values: Dict[str, Any] = field(default_factory=dict)
    typed: Set[str] = field(default_factory=set)
    of_yaml: Set[str] = field(default_factory=set)

    def argv(self) -> List[str]:
        """Return the line as every release's parser takes it: the yaml in front, a flag only where it is true.

        An option that the release does not have is an override where the yaml has the key, as shipped.
        """
        kept = [each for each in self.items if each.option is None or self._stays(each.option)]
        flags = [option for option in self.options.values() if option.real and option.kind == "flag"]
        given = [each for each in flags if self.user_values.get(each.name)]
        bare = [f"--{each.name}" if each.bare else f"--{each.name}=True" for each in given]
        return [self.path, *(word for item in kept for word in item.argv()), *bare]

    def _stays(self, option: Option) -> bool:
        return option.kind != "flag" if option.real else option.name in self.tree

    def has(self, name: str) -> bool:
        """Return whether the release's own parser has the option."""
        return name in self.options and self.options[name].real

    def set(self, name: str, value: Any) -> None:
        """Give a run option a value as if it had been typed."""
        self.values[name] = value
        self.typed.add(name)
        self.of_yaml.discard(name)

    def drop(self, name: str) -> None:
        """Take away a run option that the release has no use for."""
        self.values.pop(name, None)
        self.typed.discard(name)

    def fail(self, message: str) -> NoReturn:
        """End as the release's parser ends for what it does not accept: with exit code 2 and the reason."""
        self.arg_parser.exit(2, f"{self.arg_parser.prog}: error: {message}\n")
        raise SystemExit(2)


Hook = Callable[[Line], object]


class Hooks(Registry[Hook]):
    """What other fixes of one activation do with a command line when it has been parsed."""

    def __init__(self) -> None:
        super().__init__("the command line")


def after(site: Site, hook: Hook) -> None:
    """Have ``hook(line)`` called after the release's parser, until undo; it may change ``line.values``."""
    site.register(site.keep(Hooks), hook)
