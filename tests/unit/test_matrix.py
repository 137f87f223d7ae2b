"""The matrix: what is wrong in it is refused with file and line, and what ships is true of the installed releases."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from itertools import product
from pathlib import Path
from typing import Any, Iterator, List, Tuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ddpfix import _boot, engine
from ddpfix.matrix import detect, loader, model, reader
from ddpfix.matrix.model import MatrixError
from ddpfix.matrix.settings import SETTINGS
from ddpfix.matrix.specifiers import meet

GOOD = """\
schema: 1
toolkits:
  torch: torch
  transformers: transformers
patches:
  torch.unused:
    toolkit: torch
    code: torch.flag:decide
    setting: unused
    when: [auto, find]
    problem: a problem
    evidence:
      - https://example.org/1
rows:
  - patch: torch.unused
    versions: ">=1.13,<2.16"
    targets:
      - {at: "torch.nn:Module.forward", expects: [self]}
    tested: ["2.0.1"]
    why: a reason
"""


def load(folder: Path, text: str) -> model.Matrix:
    file = folder / "matrix.yaml"
    file.write_text(text, encoding="utf-8")
    return reader.Reader(file).matrix()


def refusal(folder: Path, text: str) -> Tuple[int, str]:
    """The line and the message of the error that this text gives."""
    with pytest.raises(MatrixError) as caught:
        load(folder, text)
    said = str(caught.value)
    head = f"{folder / 'matrix.yaml'}:"
    assert said.startswith(head)
    line, _, message = said[len(head) :].partition(": ")
    return int(line), message


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def test_a_good_one_loads(tmp_path: Path) -> None:
    loaded = load(tmp_path, GOOD)
    (row,) = loaded.rows_of("torch.unused")
    assert (row.line, row.status, str(row.targets[0])) == (15, "cured", "torch.nn:Module.forward")
    assert row.targets[0].expects == ("self",)
    assert row.tested == (Version("2.0.1"),)
    assert loaded.patches["torch.unused"].when == ("auto", "find")


# (what is replaced, by what, where the error is, what the message has to say)
BAD = {
    "not YAML": ("schema: 1", "schema: [1", "toolkits:", "not valid YAML"),
    "tab": ("  torch: torch\n", "\ttorch: torch\n", "\ttorch", "not valid YAML"),
    "two documents": ("rows:\n", "---\nrows:\n", "---", "not valid YAML"),
    "unknown schema": ("schema: 1", "schema: 2", "schema", "accepted are 1"),
    "unknown key at the top": ("rows:\n", "colour: red\nrows:\n", "colour", "accepted are schema, toolkits"),
    "unknown key in a patch": ("    code:", "    cod:", "    cod:", "accepted are toolkit, code"),
    "unknown key in a row": ("    why:", "    way:", "    way:", "accepted are patch, versions, why"),
    "unknown key in a target": ("expects:", "wants:", "{at:", "accepted are at, expects"),
    "missing key": ("    why: a reason\n", "", "patch: torch.unused\n    versions", "why missing"),
    "a key twice": ("    why:", "    why: one\n    why:", "    why: a reason", "stands twice"),
    "toolkits without torch": ("  torch: torch\n", "", "toolkits:", "'torch' is missing"),
    "unknown patch": ("- patch: torch.unused", "- patch: torch.used", "torch.used", "accepted are torch.unused"),
    "unknown toolkit": ("toolkit: torch", "toolkit: tocrh", "tocrh", "accepted are torch, transformers"),
    "unknown code file": ("torch.flag:decide", "torch.unsued:find", "torch.unsued:find", "'toolkit.file:function'"),
    "unknown function": ("torch.flag:decide", "torch.unused:fnid", "torch.unused:fnid", "'toolkit.file:function'"),
    "code from elsewhere": ("torch.flag:decide", "os:system", "os:system", "is not shipped"),
    "code by a path": ("torch.flag:decide", '"..ddpfix.cli:main"', "..ddpfix", "is not shipped"),
    "unknown setting": ("setting: unused", "setting: unsued", "unsued", "accepted are unused, layerdrop"),
    "unknown value": ("[auto, find]", "[auto, fnid]", "fnid", "accepted are auto, find, late, static, off"),
    "off as a bool": ("[auto, find]", "[auto, off]", "[auto, off]", "not bool (put it in quotes)"),
    "an unknown need": (
        "    setting: unused\n",
        "    needs: [torch.seven]\n    setting: unused\n",
        "  torch.unused",
        "cannot need 'torch.seven'",
    ),
    "a need of itself": (
        "    setting: unused\n",
        "    needs: [torch.unused]\n    setting: unused\n",
        "  torch.unused",
        "cannot need 'torch.unused'",
    ),
    "when without setting": ("    setting: unused\n", "", "when", "needs a setting"),
    "patch id without dot": ("  torch.unused:\n", "  torch_unused:\n", "  torch_unused", "'toolkit.cure'"),
    "impossible specifier": ('">=1.13,<2.16"', '">2,<1"', '">2,<1"', "no version can satisfy"),
    "impossible, subtle": ('">=1.13,<2.16"', '"==1.*,!=1.*"', '"==1.*', "no version can satisfy"),
    "invalid specifier": ('">=1.13,<2.16"', '"=>1.13"', '"=>1.13"', "write it like"),
    "specifier of a text": ('">=1.13,<2.16"', '"===abc"', '"===abc"', "== instead of ==="),
    "empty specifier": ('">=1.13,<2.16"', '""', 'versions: ""', "empty"),
    "unquoted float": ('["2.0.1"]', "[4.10]", "[4.10]", "not float (put it in quotes)"),
    "tested version unreadable": ('["2.0.1"]', '["two"]', '["two"]', "write it like"),
    "tested but outside": ('["2.0.1"]', '["2.16.0"]', '["2.16.0"]', "does not contain it"),
    "nothing tested": ('["2.0.1"]', "[]", "patch: torch.unused\n    versions", "at least one entry"),
    "no targets": (
        'targets:\n      - {at: "torch.nn:Module.forward", expects: [self]}',
        "targets: []",
        "patch: torch.unused\n    versions",
        "at least one entry",
    ),
    "target without colon": (
        '{at: "torch.nn:Module.forward", expects: [self]}',
        "torch.nn.Module",
        "torch.nn.Module",
        "'package.module:Class.method'",
    ),
    "target with half a star": ("torch.nn:Module.forward", "torch.nn:*Module", "{at:", "'package.module:Class.method'"),
    "target in no toolkit": ("torch.nn:Module.forward", "numpy:array", "{at:", "accepted are torch, transformers"),
    "a list for a mapping": (
        "toolkits:\n  torch: torch\n  transformers: transformers\n",
        "toolkits: [torch]\n",
        "toolkits",
        "a mapping is expected",
    ),
    "a mapping for a list": ('["2.0.1"]', "{a: b}", "{a: b}", "a list is expected"),
    "a list for a text": ("why: a reason", "why: [a]", "why: [a]", "a plain value is expected"),
    "nothing for a text": ("why: a reason", "why:", "why:", "a text is expected here, not null"),
    "an empty text": ("why: a reason", 'why: "  "', "why:", "this one is empty"),
    "a date for a text": ("why: a reason", "why: 2024-01-01", "why:", "not timestamp (put it in quotes)"),
    "unknown status": (
        "    why:",
        "    status: fixed\n    why:",
        "fixed",
        "accepted are cured, not-cured, not-affected",
    ),
    "an anchor": ("why: a reason", "why: &a a reason", "&a", "aliases and tags are not accepted"),
    "an alias": ("why: a reason", "why: *a", "*a", "not accepted"),
    "a tag": ("why: a reason", "why: !!python/object:os.system [a]", "!!python", "tags are not accepted"),
    "a tag on the whole": (
        "schema: 1",
        "--- !!python/object/apply:os.system\nschema: 1",
        "---",
        "tags are not accepted",
    ),
    "a patch without row": (
        "rows:\n",
        "  torch.diagnosis: {toolkit: torch, code: torch.diagnosis:reduction, problem: p, evidence: [e]}\nrows:\n",
        "  torch.diagnosis:",
        "'torch.diagnosis' has no row",
    ),
    "not a mapping at all": (GOOD, "just a text\n", "just", "a mapping is expected here"),
    "empty": (GOOD, "", "", "expected are schema, toolkits, patches, rows"),
    "only a comment": (GOOD, "# nothing\n", "", "expected are schema, toolkits, patches, rows"),
    "deep": (GOOD, "[" * 3000 + "]" * 3000, "", "nested too deeply"),
    "very deep": (GOOD, "[" * 300000 + "]" * 300000, "", "nested too deeply"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_one_is_refused_with_its_line(name: str, tmp_path: Path) -> None:
    stock, instead, where, accepted = BAD[name]
    assert GOOD.count(stock) >= 1
    text = GOOD.replace(stock, instead, 1)
    line, message = refusal(tmp_path, text)
    assert line == line_of(text, where)
    assert accepted in message


def with_row(versions: str) -> str:
    rest = "    status: not-affected\n    why: other\n"
    return GOOD + f'  - patch: torch.unused\n    versions: "{versions}"\n{rest}'


def test_a_row_twice_is_refused(tmp_path: Path) -> None:
    line, message = refusal(tmp_path, GOOD + GOOD[GOOD.index("  - patch") :])
    assert line == 21
    assert "row in line 15" in message


@pytest.mark.parametrize("versions", ["<1.13.1", ">=2.15", "==2.0.*", "~=2.14", ">2.15.0", "<=1.13", "!=1.13"])
def test_overlapping_rows_are_refused(versions: str, tmp_path: Path) -> None:
    line, message = refusal(tmp_path, with_row(versions))
    assert line == 21
    assert "row in line 15" in message and "exactly one row" in message
    witness = message.split("version ")[1].split(" ")[0]
    assert all(SpecifierSet(text).contains(witness, prereleases=True) for text in (versions, ">=1.13,<2.16"))


@pytest.mark.parametrize("versions", ["<1.13", ">=2.16", ">=2.16.dev0", "==1.12.*", "<1.13,!=1.0"])
def test_neighbouring_rows_are_accepted(versions: str, tmp_path: Path) -> None:
    assert len(load(tmp_path, with_row(versions)).rows) == 2


def test_two_patches_cannot_share_a_variable(tmp_path: Path) -> None:
    entry = GOOD[GOOD.index("  torch.unused:") : GOOD.index("rows:")]
    twin = entry.replace("torch.unused:\n", "torch.un_used:\n", 1)
    other = entry.replace("torch.unused:\n", "torch_un.used:\n", 1)
    line, message = refusal(tmp_path, GOOD.replace("rows:\n", twin + other + "rows:\n"))
    assert "DDPFIX_TORCH_UN_USED" in message and "'torch.un_used'" in message
    assert line == 22


@pytest.mark.parametrize("content", [b"\x00\x01\x02", b"\xff\xfe\x80", b"\x89PNG\r\n\x1a\n\x00"])
def test_binary_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_bytes(content)
    with pytest.raises(MatrixError, match=re.escape(f"{file}:1: ") + ".*YAML in UTF-8"):
        loader.load(file)


def test_missing_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "nothing.yaml"
    with pytest.raises(MatrixError, match=re.escape(f"{file}:1: ") + ".*reinstall ddpfix"):
        loader.load(file)
    with pytest.raises(MatrixError, match=re.escape(f"{tmp_path}:1: ")):
        loader.load(tmp_path)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    import os

    file = tmp_path / "matrix.yaml"
    file.write_text(GOOD)
    first = loader.load(file)
    assert loader.load(file) is first
    file.write_text(GOOD.replace("a reason", "another"))
    os.utime(file, (1, 1))
    assert loader.load(file).rows[0].why == "another"


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


# The overlap detector against brute force.

_PRE = ("", "a1", "rc1", "rc2")
_POST = ("", ".post0", ".post1", ".post2")
_DEV = ("", ".dev0", ".dev1", ".dev2")
_RELEASES = ("0", "0.9", "1", "1.0.1", "1.1", "1.1.1", "1.2", "1.2.0.1", "2", "2.0.1", "3")
EVERY = [Version(r + p + q + d) for r, p, q, d in product(_RELEASES, _PRE, _POST, _DEV)]
EVERY += [Version("1.1+cpu"), Version("1.2+cu121"), Version("1!1"), Version("1!1.1")]


def clauses() -> Any:
    release = st.sampled_from(["0.9", "1", "1.0.1", "1.1", "1.1.1", "1.2", "2", "1!1"])
    suffix = st.sampled_from(["", "", "", "", "rc1", ".post1", ".dev1", "a1.post0", "rc1.dev1", ".post1.dev1"])
    plain = st.builds("{}{}{}".format, st.sampled_from([">=", ">", "<", "<=", "==", "!="]), release, suffix)
    star = st.builds("{}{}.*".format, st.sampled_from(["==", "!="]), st.sampled_from(["1", "1.1", "1.1.1", "2"]))
    about = st.builds("~={}{}".format, st.sampled_from(["1.0", "1.1", "1.1.1", "1.0.1"]), st.sampled_from(["", "rc1"]))
    return st.one_of(plain, plain, plain, star, about)


def specifiers() -> Any:
    return st.lists(clauses(), min_size=1, max_size=3).map(lambda parts: SpecifierSet(",".join(parts)))


@settings(max_examples=400, deadline=None)
@given(one=specifiers(), other=specifiers())
@example(one=SpecifierSet(">1.1"), other=SpecifierSet("<1.1.0.0.1"))
@example(one=SpecifierSet(">1.1rc1"), other=SpecifierSet("<1.1.post3"))
@example(one=SpecifierSet("!=1.1"), other=SpecifierSet(">=1.1,<1.1.post1"))
@example(one=SpecifierSet(">1.1.post1"), other=SpecifierSet("<1.1.post3"))
@example(one=SpecifierSet(">1.1.dev3"), other=SpecifierSet("<1.1.dev5"))
@example(one=SpecifierSet("!=1.*,>=1"), other=SpecifierSet("<2"))
@example(one=SpecifierSet("!=1.1.*,>=1.1"), other=SpecifierSet("<1.2.1"))
def test_the_overlap_detector_agrees_with_brute_force(one: SpecifierSet, other: SpecifierSet) -> None:
    found = meet(one, other)
    common = [v for v in EVERY if one.contains(v, prereleases=True) and other.contains(v, prereleases=True)]
    if found is None:
        assert not common
        # packaging 26 knows the answer itself.
        assert not hasattr(one, "is_disjoint") or one.is_disjoint(other)
    else:
        assert one.contains(found, prereleases=True) and other.contains(found, prereleases=True)


# What ships.


def shipped_targets() -> Iterator[Tuple[model.Row, model.Target]]:
    """(row, target) of the rows that hold for the installed releases."""
    whole = loader.load()
    installed = detect.installed_versions(whole)
    for row in whole.rows:
        version = installed[whole.patches[row.patch].toolkit]
        if version is not None and row.versions.contains(Version(version), prereleases=True):
            for target in row.targets:
                yield row, target


def test_the_shipped_matrix_names_code_that_can_be_called() -> None:
    for patch in loader.load().patches.values():
        function = engine._code(patch.code)
        assert list(inspect.signature(function).parameters) == ["site", "module", "owner"]


def test_the_shipped_matrix_is_whole() -> None:
    whole = loader.load()
    names = [setting.name for setting in SETTINGS]
    for patch in whole.patches.values():
        assert patch.problem and patch.evidence
        assert all(item.startswith("https://") for item in patch.evidence)
        assert patch.setting is None or patch.setting in names
    assert all(row.why for row in whole.rows)


def test_the_finder_watches_the_toolkits_of_the_matrix() -> None:
    assert _boot.watched() == frozenset(loader.load().toolkits)


TARGETS: List[Any] = [
    pytest.param(target, id=f"{row.patch}-{target}") for row, target in shipped_targets() if "*" not in target.module
]
FAMILIES = [(row, target) for row, target in shipped_targets() if "*" in target.module]


def test_there_are_targets_for_what_is_installed() -> None:
    assert len(TARGETS) >= 12
    assert {row.patch for row, _ in FAMILIES} == {"transformers.layerdrop", "transformers.layerdrop_off"}


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_is_in_the_installed_release(target: model.Target) -> None:
    pattern = engine._pattern(target.module)
    module = importlib.import_module(target.module)
    assert pattern.match(module.__name__)
    assert engine._locate(module, target) is not None
    # The name is where the definition is: a re-export would be patched without its home. A class may have inherited it.
    owner, found = module, module  # type: Any, Any
    for part in target.attribute.split("."):
        owner, found = found, getattr(found, part)
    defined = [owner] if inspect.isclass(owner) else [found, inspect.unwrap(found)]
    assert target.module in [definition.__module__ for definition in defined]


@pytest.mark.parametrize("patch", ["transformers.layerdrop", "transformers.layerdrop_off"])
def test_a_family_of_targets_has_members_in_the_installed_release(patch: str) -> None:
    # Some of a row's families exist in a part of its releases only (transformers.models.deprecated.*).
    found = [name for row, target in FAMILIES if row.patch == patch for name in modules_like(target.module)]
    assert "transformers.models.wavlm.modeling_wavlm" in found and len(found) > 100
    assert all(target.attribute == "*" for _, target in FAMILIES)


def modules_like(name: str) -> List[str]:
    """Modules on disk whose name has the form of a target's."""
    spec = importlib.util.find_spec(name.partition(".")[0])
    assert spec is not None and spec.origin is not None
    site = Path(spec.origin).parent.parent
    pattern = engine._pattern(name)
    files = site.glob(name.replace(".", "/") + ".py")
    modules = (".".join(file.relative_to(site).with_suffix("").parts) for file in files)
    return [module for module in modules if pattern.match(module)]


def test_a_pattern_stands_for_one_part_of_a_name() -> None:
    pattern = engine._pattern("transformers.models.*.modeling_*")
    assert pattern.match("transformers.models.wavlm.modeling_wavlm")
    assert not pattern.match("transformers.models.wavlm.configuration_wavlm")
    assert not pattern.match("transformers.models.deprecated.mctct.modeling_mctct")
    assert not pattern.match("xtransformers.models.wavlm.modeling_wavlm")


def test_a_toolkit_may_name_the_file_that_tells_its_version(tmp_path: Path) -> None:
    good = GOOD.replace(
        "  torch: torch\n", "  torch: torch\n  kit: {distribution: a-kit, version_file: version.txt}\n", 1
    )
    found = load(tmp_path, good)
    assert found.toolkits["kit"] == "a-kit" and found.version_files == {"kit": "version.txt"}
    line, said = refusal(tmp_path, good.replace("version.txt", "../version.txt"))
    assert line == 4 and "is not the name of a file in the package" in said
    line, said = refusal(tmp_path, good.replace("version_file: version.txt", "file: version.txt"))
    assert line == 4 and "accepted are distribution, version_file" in said


def test_a_patch_may_be_off_by_default(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD).patches["torch.unused"].default
    off = GOOD.replace("    problem:", '    default: "off"\n    problem:', 1)
    assert not load(tmp_path, off).patches["torch.unused"].default
    line, said = refusal(tmp_path, off.replace('"off"', "never"))
    assert line == 11 and "accepted are on, off" in said


MARKED = GOOD.replace(
    "  torch: torch\n",
    """  torch: torch
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


# (what is replaced, by what, where the error is, what the message has to say)
BAD_MARKS = {
    "unknown key": (
        "        no_files:",
        "        nofiles:",
        "nofiles",
        "accepted are version, files, no_files, words, no_",
    ),
    "unknown key beside marks": ("    marks:", "    signs:", "signs", "accepted are distribution, version_file, marks"),
    "no version": (
        '{version: "1.0", words',
        "{words",
        "- {words",
        "version missing",
    ),
    "a version that is none": ('"1.0"', "main", "{version: main", "is not a version"),
    "holds everywhere": (
        "words: {core.py: class Core}}",
        "no_files: [old]}",
        "no_files: [old]}",
        "needs files or words",
    ),
    "out of the package": ("[old]", "[../old]", "../old", "not a path in the package"),
    "an absolute path": ("{core.py: class Core}}", "{/core.py: class Core}}", "/core.py", "not a path in the package"),
    "no words": ("{core.py: class Core}}", "{core.py: }}", "{core.py: }", "a text is expected"),
    "a list of words": ("{core.py: class Core}}", "[core.py]}", "[core.py]", "a mapping is expected"),
    "a mapping of marks": ("[old]", "{old: 1}", "{old: 1}", "a list is expected"),
    "nothing": ("    marks:", "    #", "  kit:", "either version_file or marks"),
    "both": ("    marks:", "    version_file: v.txt\n    marks:", "  kit:", "either version_file or marks"),
}


@pytest.mark.parametrize("name", BAD_MARKS)
def test_bad_marks_are_refused_with_their_line(name: str, tmp_path: Path) -> None:
    stock, instead, where, accepted = BAD_MARKS[name]
    assert MARKED.count(stock) == 1
    text = MARKED.replace(stock, instead, 1)
    if name == "nothing":
        text = text[: text.index("    #")] + text[text.index("  transformers") :]
    line, message = refusal(tmp_path, text)
    assert line == line_of(text, where)
    assert accepted in message


def test_the_finder_watches_toolkits_that_are_described_at_length(tmp_path: Path) -> None:
    assert set(_boot._toolkits(MARKED.splitlines(keepends=True))) == {"torch", "kit", "transformers"}
