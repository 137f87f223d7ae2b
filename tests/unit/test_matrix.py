"""The matrix: errors in it are refused with file and line, and the shipped one fits the installed releases."""

from __future__ import annotations

import inspect
import re
from itertools import product
from pathlib import Path
from typing import Any, List, Optional, Sequence, Tuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ddpfix import _boot, engine, waiting
from ddpfix.matrix import loader, model
from ddpfix.matrix.compiling import reader
from ddpfix.matrix.model import MatrixError
from ddpfix.matrix.ranges import Range, within
from ddpfix.settings.reading import SETTINGS

GOOD = """\
schema: 2
toolkits:
  torch:
    distribution: torch
    places:
      forward: {at: "torch.nn:Module.forward", expects: [self]}
  transformers: transformers
patches:
  torch.flag:
    toolkit: torch
    code: torch.unused.flag:decide
    setting: unused
    when: [auto, find]
    instead: {find: auto}
    examined: {Model: ["54cfe6d62560"]}
    problem: a problem
    evidence:
      - https://example.org/1
    rows:
      - from: "1.13"
        to: "2.0"
        targets:
          - {at: forward, call: user_choice}
          - forward
        why: a reason
      - from: "2.1"
        targets:
          - {at: "torch.nn:Linear.forward", expects: [input]}
        why: another
      - from: "2.10"
        to: "2.16"
        status: not-affected
        why: a third
tested:
  torch:
    versions: ["1.13.1", "2.1.0", "2.4.1"]
    except:
      torch.flag: ["2.4.1"]
"""


def load(folder: Path, text: str) -> model.Matrix:
    file = folder / "matrix.yaml"
    file.write_text(text, encoding="utf-8")
    return reader.Reader(file).matrix()


def refusal(folder: Path, text: str) -> Tuple[int, str]:
    """The line and the message of the error that this text gives."""
    with pytest.raises(MatrixError) as caught:
        load(folder, text)
    message = str(caught.value)
    head = f"{folder / 'matrix.yaml'}:"
    assert message.startswith(head)
    line, _, message = message[len(head) :].partition(": ")
    return int(line), message


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def test_a_good_one_loads(tmp_path: Path) -> None:
    loaded = load(tmp_path, GOOD)
    first, second, third = loaded.rows_of("torch.flag")
    assert [str(row.versions) for row in (first, second, third)] == ["<2.0,>=1.13", "<2.10,>=2.1", "<2.16,>=2.10"]
    assert [row.status for row in (first, second, third)] == ["cured", "cured", "not-affected"]
    assert [row.tested for row in (first, second, third)] == [(Version("1.13.1"),), (Version("2.1.0"),), ()]
    target = model.Target("torch.nn", "Module.forward", ("self",))
    assert first.targets == (target._replace(call="user_choice"), target)
    assert second.targets == (model.Target("torch.nn", "Linear.forward", ("input",)),)
    patch = loaded.patches["torch.flag"]
    assert patch.when == ("auto", "find") and patch.instead == {"find": "auto"}
    assert patch.examined == {"Model": ("54cfe6d62560",)}
    assert [patch.code_at(target) for target in first.targets] == [
        "torch.unused.flag:user_choice",
        "torch.unused.flag:decide",
    ]


def test_a_place_may_expect_other_parameters_and_the_first_row_begin_with_the_first_version(tmp_path: Path) -> None:
    loaded = load(tmp_path, GOOD.replace("call: user_choice", "expects: []").replace('from: "1.13"\n        to', "to"))
    assert [target.expects for target in loaded.rows[0].targets] == [(), ("self",)]
    assert str(loaded.rows[0].versions) == "<2.0"


def test_what_torch_has_is_shared_by_all(tmp_path: Path) -> None:
    """Each toolkit's models are wrapped by the same class; a toolkit's own place of that name comes first."""
    other = """\
  transformers.one:
    toolkit: transformers
    code: torch.unused.flag:decide
    problem: a problem
    evidence: [e]
    rows:
      - {from: "4.0", to: "5.0", targets: [forward], why: w}
"""
    tested = '  transformers:\n    versions: ["4.1"]\n'
    text = GOOD.replace("tested:\n", other + "tested:\n") + tested
    (row,) = load(tmp_path, text).rows_of("transformers.one")
    assert str(row.targets[0]) == "torch.nn:Module.forward" and row.tested == (Version("4.1"),)
    own = """\
  transformers:
    distribution: transformers
    places: {forward: "transformers.own:Own.forward"}
"""
    (row,) = load(tmp_path, text.replace("  transformers: transformers\n", own)).rows_of("transformers.one")
    assert str(row.targets[0]) == "transformers.own:Own.forward"


def test_code_is_needed_for_a_fix_only(tmp_path: Path) -> None:
    never = """\
  torch.never:
    toolkit: torch
    problem: a problem
    evidence: [e]
    rows:
      - {from: "1.13", to: "2.16", status: not-cured, why: w}
"""
    text = GOOD.replace("tested:\n", never + "tested:\n")
    assert load(tmp_path, text).patches["torch.never"].code == ""
    with_fix = text.replace("status: not-cured, why: w", "targets: [forward], why: w")
    line, message = refusal(tmp_path, with_fix)
    assert line == line_of(with_fix, "  torch.never") and "code missing" in message and "cured" in message


# (what is replaced, by what, where the error is if that is elsewhere, what the message has to say)
FIRST_ROW, LAST_ROW = '- from: "1.13"', '- from: "2.10"'
VERSIONS = '["1.13.1", "2.1.0", "2.4.1"]'
CODE, USES = "torch.unused.flag:decide", "    setting: unused\n"
BAD = [
    ("schema: 2", "schema: [2", "toolkits:", "not valid YAML"),
    ("  transformers: transformers\n", "\ttransformers: t\n", "\ttransformers", "not valid YAML"),
    ("tested:\n", "---\ntested:\n", "---", "not valid YAML"),
    (GOOD, "schema: 1\ntoolkits: {}\npatches: {}\nrows: []\n", "schema", "expected 2"),
    ("schema: 2", "schema: 3", "schema", "expected 2"),
    ("schema: 2\n", "", "toolkits", "schema missing"),
    ("tested:\n", "colour: red\ntested:\n", "colour", "expected schema, toolkits"),
    ("    code:", "    cod:", "expected toolkit, problem, evidence, rows, code"),
    ("        why: another", "        way: a", "        way:", "expected why, from, to"),
    ("{at: forward, call:", "{at: forward, wants:", "{at: forward", "expected at, expects"),
    ("        why: another\n", "", '- from: "2.1"', "why missing"),
    ("        why: another", "        why: one\n        why: another", "        why: another", "twice"),
    (GOOD[GOOD.index("  torch:") : GOOD.index("  transformers")], "", "toolkits:", "'torch' is missing"),
    ("toolkit: torch", "toolkit: tocrh", "tocrh", "expected torch, transformers"),
    ("torch.unused.flag:decide", "torch.unsued:find", "'toolkit.file:function'"),
    (CODE, "os:system", "is not shipped"),
    ("    code: torch.unused.flag:decide\n", "", "call: user_choice", "the file of the patch's code, which is missing"),
    ("call: user_choice", "call: decied", "function in patches/torch/unused/flag.py"),
    ("call: user_choice", "call: [user_choice]", "call: [", "a plain value is expected"),
    ("setting: unused", "setting: unsued", "unsued", "expected unused, layerdrop"),
    ("[auto, find]", "[auto, fnid]", "fnid", "expected auto, find, late, static, off"),
    ("[auto, find]", "[auto, off]", "not bool (put it in quotes)"),
    ("{find: auto}", "{late: auto}", "{late", "expected auto, find"),
    ("{find: auto}", "{find: find}", "{find", "expected auto"),
    ("54cfe6d62560", "54cfe6d6256x", "12 hexadecimal digits"),
    ('["54cfe6d62560"]', '"54cfe6d62560"', "examined", "a list is expected here"),
    (USES, "    needs: [torch.seven]\n" + USES, "  torch.flag", "cannot need 'torch.seven'"),
    (USES, "    after: [torch.seven]\n" + USES, "  torch.flag", "cannot be after 'torch.seven'"),
    (USES, "    after: [torch.flag]\n" + USES, "  torch.flag", "each after another one of them: torch.flag"),
    (USES, "    needs: [torch.flag]\n" + USES, "  torch.flag", "cannot need 'torch.flag'"),
    (USES, "", "when", "needs a setting"),
    ("  torch.flag:\n", "  torch_flag:\n", "  torch_flag", "'toolkit.fix'"),
    ("- forward\n", "- backward\n", "- backward", "no place of torch; expected forward, a target"),
    ('"torch.nn:Module.forward"', "torch.nn", "at: torch.nn", "'package.module:Class.method'"),
    ("expects: [self]", "call: user_choice", "{at: ", "expected at, expects"),
    ("      forward: {at", "      - {at", "    places", "a mapping is expected"),
    ('- from: "2.1"\n', "-\n", 'targets:\n          - {at: "torch.nn:L', "from missing"),
    ('        to: "2.16"\n', "", LAST_ROW, "to missing"),
    (LAST_ROW, '- from: "2.0.9"', '"2.0.9"', "2.1 of patch torch.flag is claimed by this row and by"),
    (LAST_ROW, '- from: "2.1.0"', '"2.1.0"', "row in line 26; rows ascend"),
    ('to: "2.0"', 'to: "2.5"', '- from: "2.1"', "row in line 20; rows ascend"),
    ('to: "2.16"', 'to: "2.9"', LAST_ROW, "no version can satisfy '>=2.10,<2.9'"),
    (LAST_ROW, '- from: "2.16rc1"', '"2.16rc1"', "no version can satisfy '>=2.16rc1,<2.16'"),
    (FIRST_ROW, '- from: ">=1.13"', '">=1.13"', "is not a version; write it like"),
    ('to: "2.16"', 'to: "2.16+cpu"', '"2.16+cpu"', "local part"),
    (FIRST_ROW, '- from: ""', "empty"),
    (FIRST_ROW, "- from: 1.13", "not float (put it in quotes)"),
    (GOOD[GOOD.index("    rows:") : GOOD.index("tested:")], "    rows: []\n", "    rows:", "has no row"),
    (GOOD[GOOD.index("    rows:") : GOOD.index("tested:")], "", "  torch.flag", "rows missing"),
    (VERSIONS, '["two"]', "write it like"),
    ("tested:\n  torch:", "tested:\n  tocrh:", "  tocrh", "expected torch, transf"),
    ("    except:", "    but:", "expected versions, except"),
    ("      torch.flag: [", "      torch.used: [", "torch.used", "expected torch.flag"),
    ('torch.flag: ["2.4.1"]', "torch.flag: []", "at least one version"),
    (VERSIONS, "[]", "versions: []", "at least one version"),
    (
        'targets:\n          - {at: "torch.nn:Linear.forward", expects: [input]}',
        "targets: []",
        '- from: "2.1"',
        "at least one entry",
    ),
    ('{at: "torch.nn:Linear.forward", expects: [input]}', "torch.nn.Linear", "'package.module:Class.method'"),
    ("torch.nn:Linear.forward", "torch.nn:*Linear", "torch.nn:*", "'package.module:Class.m"),
    ("torch.nn:Linear.forward", "numpy:array", "numpy", "expected torch, transformers"),
    ("call: user_choice", "moment: before", "{at: forward", "'package.module:*'"),
    (VERSIONS, "{a: b}", "a list is expected"),
    ("why: a reason", "why: [a]", "a plain value is expected"),
    ("why: a reason", "why:", "a text is expected here, not null"),
    ("why: a reason", 'why: "  "', "why:", "this one is empty"),
    ("why: a reason", "why: 2024-01-01", "why:", "not timestamp (put it in quotes)"),
    ("status: not-affected", "status: fixed", "fixed", "expected cured, not-cured, not-affected"),
    (GOOD, "just a text\n", "just", "a mapping is expected here"),
    ("    problem:", "    default: never\n    problem:", "    default", "expected on, off"),
    (GOOD, "", "expected are schema, toolkits, patches, tested"),
]


def with_bounds(rows: Sequence[Tuple[str, Optional[str]]]) -> str:
    """The good one with these rows, each of which has ``from``, and ``to`` if that is given."""
    text = GOOD[: GOOD.index("      - from")]
    for begin, end in rows:
        to = f'        to: "{end}"\n' if end else ""
        text += f'      - from: "{begin}"\n{to}        status: not-affected\n        why: w\n'
    no_place = text.replace(
        text[text.index("    places:") : text.index("  transformers:")], "    version_file: v.txt\n"
    )
    return no_place + "tested: {}\n"


@pytest.mark.parametrize(
    "rows", [[("1", None), ("2", "3")], [("1", "1.5"), ("2", "3")], [("1", None), ("2.dev0", "3")]], ids=str
)
def test_neighbouring_rows_are_accepted(rows: List[Tuple[str, Optional[str]]], tmp_path: Path) -> None:
    assert len(load(tmp_path, with_bounds(rows)).rows) == 2


def test_a_gap_stays_one(tmp_path: Path) -> None:
    """Candidates of a release in which a row ends are in no row, unless the next one begins before them."""
    rows = load(tmp_path, with_bounds([("1", "1.5"), ("2", None), ("3.dev0", "4")])).rows

    def holding(version: str) -> List[str]:
        return [str(row.versions) for row in rows if row.versions.holds(Version(version))]

    assert holding("1.5") == holding("1.9.9") == holding("2.0rc1") == holding("4.0rc1") == []
    assert holding("2.0") == holding("2.9") == ["<3.dev0,>=2"]
    assert holding("3.0rc1") == holding("3.0.dev0") == ["<4,>=3.dev0"]


def test_two_patches_cannot_share_a_variable(tmp_path: Path) -> None:
    entry = GOOD[GOOD.index("  torch.flag:") : GOOD.index("tested:")]
    twin = entry.replace("torch.flag:\n", "torch.un_used:\n", 1)
    other = entry.replace("torch.flag:\n", "torch_un.used:\n", 1)
    text = GOOD.replace("tested:\n", twin + other + "tested:\n")
    line, message = refusal(tmp_path, text)
    assert "DDPFIX_TORCH_UN_USED" in message and "'torch.un_used'" in message
    assert line == line_of(text, "  torch_un.used:")


@pytest.mark.parametrize("content", [b"\x00\x01\x02", b"\xff\xfe\x80", b"\x89PNG\r\n\x1a\n\x00"])
def test_binary_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_bytes(content)
    with pytest.raises(MatrixError, match=re.escape(f"{file}:1: ") + ".*YAML in UTF-8"):
        reader.Reader(file).matrix()


def test_missing_is_refused(tmp_path: Path) -> None:
    for file in (tmp_path / "nothing.yaml", tmp_path):
        with pytest.raises(MatrixError, match=re.escape(f"{file}:1: cannot be read")):
            reader.Reader(file).matrix()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_gives_another_error(tmp_path: Path, data: Any) -> None:
    """Whatever is done to the text, either it loads or the error is ours, with a line."""
    at = data.draw(st.integers(0, len(GOOD)))
    length = data.draw(st.integers(0, 12))
    junk = data.draw(st.text("[]{}:-#&*!|>'\"\n %@,a1.", max_size=8))
    file = tmp_path / "matrix.yaml"
    file.write_text(GOOD[:at] + junk + GOOD[at + length :], encoding="utf-8")
    try:
        reader.Reader(file).matrix()
    except MatrixError as error:
        assert re.match(re.escape(str(file)) + r":\d+: .", str(error))


# Ranges against packaging.

_PRE = ("", "a1", "rc1", "rc2")
_POST = ("", ".post0", ".post1", ".post2")
_DEV = ("", ".dev0", ".dev1", ".dev2")
_RELEASES = ("0", "0.9", "1", "1.0.1", "1.1", "1.1.1", "1.2", "1.2.0.1", "2", "2.0.1", "3")
EVERY = [Version(r + p + q + d) for r, p, q, d in product(_RELEASES, _PRE, _POST, _DEV)]
EVERY += [Version(f"{r}{p}+{local}") for r, p, local in product(_RELEASES, _PRE, ("cpu", "cu121.git1"))]
EVERY += [Version("1!1"), Version("1!1.1")]


def bounds() -> Any:
    release = st.sampled_from(["0.9", "1", "1.0.1", "1.1", "1.1.1", "1.2", "2", "1!1"])
    suffix = st.sampled_from(["", "", "", "", "rc1", ".post1", ".dev1", "a1.post0", "rc1.dev1", ".post1.dev1"])
    return st.builds("{}{}".format, release, suffix)


@settings(max_examples=400, deadline=None)
# About the candidates of a post-release, releases of packaging disagree; no row ends in one.
@given(begin=st.none() | bounds(), end=bounds().filter(lambda text: "post" not in text))
@example(begin="1.0rc1", end="1.0")
@example(begin=None, end="3.1.dev0")
def test_a_range_holds_what_packaging_says(begin: Optional[str], end: str) -> None:
    found = Range(begin, end)
    theirs = SpecifierSet(str(found))
    assert str(theirs) == str(found)
    held = [version for version in EVERY if theirs.contains(version, prereleases=True)]
    assert within(found, EVERY) == held
    assert not (held and found.is_empty())


# What ships.


def test_the_shipped_matrix_names_code_that_can_be_called() -> None:
    whole = loader.load()
    called = {whole.patches[row.patch].code_at(target) for row in whole.rows for target in row.targets}
    called |= {patch.code for patch in whole.patches.values() if patch.code}
    for code in called:
        assert list(inspect.signature(engine._code(code)).parameters) == ["site", "module", "owner"], code


def test_the_shipped_matrix_is_whole() -> None:
    whole = loader.load()
    names = [setting.name for setting in SETTINGS]
    for patch in whole.patches.values():
        assert patch.problem and patch.evidence
        assert all(item.startswith("https://") for item in patch.evidence)
        assert patch.setting is None or patch.setting in names
    assert all(row.why and (row.tested or row.status != "cured") for row in whole.rows)


def test_the_finder_watches_the_toolkits_of_the_matrix() -> None:
    assert _boot.watched() == frozenset(loader.load().toolkits)


def test_a_pattern_stands_for_one_part_of_a_name() -> None:
    pattern = waiting.pattern("transformers.models.*.modeling_*")
    assert pattern.match("transformers.models.wavlm.modeling_wavlm")
    assert not pattern.match("transformers.models.wavlm.configuration_wavlm")
    assert not pattern.match("transformers.models.deprecated.mctct.modeling_mctct")
    assert not pattern.match("xtransformers.models.wavlm.modeling_wavlm")


VERSION_FILE = ("toolkits:\n", "toolkits:\n  kit: {distribution: a-kit, version_file: version.txt}\n")


def test_a_toolkit_may_name_the_file_that_tells_its_version(tmp_path: Path) -> None:
    found = load(tmp_path, GOOD.replace(*VERSION_FILE, 1))
    assert found.toolkits["kit"] == "a-kit" and found.version_files == {"kit": "version.txt"}


def test_a_patch_may_be_off_by_default(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD).patches["torch.flag"].default
    off = GOOD.replace("    problem:", '    default: "off"\n    problem:', 1)
    assert not load(tmp_path, off).patches["torch.flag"].default


MARKED = GOOD.replace(
    "toolkits:\n",
    """toolkits:
  kit:
    distribution: a-kit
    marks:
      - version: "2.0"
        files: [utils/new.py, utils]
        no_files: [old]
        words: {core.py: class Core}
        no_words: {core.py: "join"}
      - {version: "1.0", words: {core.py: class Core}}
""",
    1,
)


def test_a_toolkit_may_be_known_by_marks(tmp_path: Path) -> None:
    found = load(tmp_path, MARKED)
    first = model.Mark("2.0", ("utils/new.py", "utils"), ("old",), (("core.py", "class Core"),), (("core.py", "join"),))
    assert found.marks == {"kit": (first, model.Mark("1.0", words=(("core.py", "class Core"),)))}
    assert found.toolkits["kit"] == "a-kit" and found.version_files == {}


# (what is replaced, by what, where the error is if that is elsewhere, what the message has to say)
BAD_MARKS = [
    (
        "  kit:\n",
        "  other: {distribution: a, version_file: ../v.txt}\n  kit:\n",
        "  other",
        "is not the name of a file in the",
    ),
    ("  kit:\n", "  other: {distribution: a, file: v.txt}\n  kit:\n", "  other", "expected distribution, version_file"),
    ("        no_files:", "        nofiles:", "nofiles", "expected version, files, no_files, words, no_"),
    ("    marks:", "    signs:", "signs", "expected distribution, version_file, marks, pl"),
    ('"1.0"', "main", "{version: main", "is not a version"),
    ("words: {core.py: class Core}}", "no_files: [old]}", "needs files or words"),
    ("[old]", "[../old]", "../old", "not a path in the package"),
    ("{core.py: class Core}}", "{/core.py: class Core}}", "/core.py", "not a path in the package"),
]


@pytest.mark.parametrize(("good", "bad"), [*((GOOD, bad) for bad in BAD), *((MARKED, bad) for bad in BAD_MARKS)])
def test_a_bad_one_is_refused_with_its_line(good: str, bad: Tuple[str, ...], tmp_path: Path) -> None:
    old, instead, *where, accepted = bad
    assert good.count(old) >= 1
    text = good.replace(old, instead, 1)
    line, message = refusal(tmp_path, text)
    assert line == line_of(text, where[0] if where else instead)
    assert accepted in message
