"""One command line on its way through the parser, and the hooks by which fixes change it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, NoReturn, Optional, Sequence, Set

from ddpfix.patching.site import Registry, Site

from . import parser
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
        typed: the names of those that were typed, or set as if they had been.
        of_yaml: the names of those that the yaml has set.
    """

    arg_parser: argparse.ArgumentParser
    options: Dict[str, Option]
    tree: Mapping[str, Any]
    path: str
    items: List[Item] = field(default_factory=list)
    user_values: Dict[str, Any] = field(default_factory=dict)
    values: Dict[str, Any] = field(default_factory=dict)
    typed: Set[str] = field(default_factory=set)
    of_yaml: Set[str] = field(default_factory=set)

    def read(self, argv: Sequence[str]) -> None:
        """Take the words apart; end the run for a flag's value that is no truth value."""
        rest = list(argv)
        rest.remove(self.path)
        for word in rest:
            if word.startswith("--"):
                self.items.append(Item([word], self._option(word[2:].partition("=")[0])))
            elif self.items and self.items[-1].takes():
                self.items[-1].words.append(word)
            else:
                self.items.append(Item([word]))
        for item in self.items:
            if item.option is None:
                continue
            name, value = item.option.name, " ".join(item.texts)
            self.user_values[name] = value
            if item.option.kind == "flag":
                self.user_values[name] = parser.truth(value) if item.texts else True
                if self.user_values[name] is None:
                    self.fail(f"--{name}={value}: use {parser.ACCEPTED}")

    def _option(self, name: str) -> Optional[Option]:
        """Return the run option that a name stands for; None for a key of the yaml, and for what is unclear."""
        if name in self.options or name in self.tree:
            return self.options.get(name)
        plain = name.replace("-", "_")
        if plain in self.options:
            return self.options[plain]
        prefixed = [option for known, option in self.options.items() if plain and known.startswith(plain)]
        # What the release itself knows comes first: an abbreviation keeps its meaning.
        prefixed = [option for option in prefixed if option.real] or prefixed
        return prefixed[0] if len(prefixed) == 1 else None

    def argv(self) -> List[str]:
        """Return the line as every release's parser takes it: the yaml in front, a flag only where it is true.

        An option that the release does not have is an override where the yaml has the key, as shipped.
        """
        words: List[str] = [self.path]
        for item in self.items:
            option = item.option
            if option is None or (option.kind != "flag" if option.real else option.name in self.tree):
                words += item.argv()
        for option in self.options.values():
            if option.real and option.kind == "flag" and self.user_values.get(option.name):
                words.append(f"--{option.name}" if option.bare else f"--{option.name}=True")
        return words

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
