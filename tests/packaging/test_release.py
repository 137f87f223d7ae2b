"""What is published: one version, one list of requirements everywhere."""

from __future__ import annotations

import os
import re
import sys
from typing import Any, Dict, Set

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ddpfix import __version__
from tests.activation.support import ROOT
from tests.packaging import release

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.packaging
# What conda calls otherwise.
CONDA = {"torch": "pytorch"}


def project() -> Dict[str, Any]:
    found: Dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def test_a_command_that_fails_is_an_error() -> None:
    with pytest.raises(release.ReleaseError, match=r"ended with 3\nsaid"):
        release.command(sys.executable, "-c", "print('said'); raise SystemExit(3)")


def test_the_version_is_the_same_everywhere() -> None:
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    recipe = re.search(r'default="([^"]+)"', release.RECIPE.read_text(encoding="utf-8"))
    cited = yaml.safe_load(release.CITATION.read_text(encoding="utf-8"))["version"]
    assert heading is not None and recipe is not None
    assert {project()["version"], heading[1], recipe[1], cited} == {__version__}


def requirements(words: object) -> Set[str]:
    """Names with their ranges, as conda writes them."""
    assert isinstance(words, list)
    return {" ".join([CONDA.get(name, name), text]) for name, text in map(_parts, words)}


def _parts(word: str) -> tuple[str, str]:
    found = Requirement(word)
    return canonicalize_name(found.name), str(found.specifier)


def test_the_recipe_asks_for_what_the_project_asks_for() -> None:
    recipe = yaml.safe_load(release.RECIPE.read_text(encoding="utf-8"))
    oldest = recipe["context"]["python_min"]
    run = {word for word in recipe["requirements"]["run"] if not word.startswith("python ")}
    # What only older Pythons need than those that the recipe is for is not asked for.
    wanted = [word for word in project()["dependencies"] if _applies(word, oldest)]
    assert run == requirements(wanted)
    built_with = set(recipe["requirements"]["host"][2:])
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert built_with == requirements(tomllib.load(file)["build-system"]["requires"])
    assert recipe["build"]["python"]["entry_points"] == ["ddpfix = " + project()["scripts"]["ddpfix"]]


def _applies(word: str, python: str) -> bool:
    marker = Requirement(word).marker
    return marker is None or marker.evaluate({"python_version": python})


def test_the_workflow_trusts_nothing_that_can_change() -> None:
    """Actions are pinned by commit, and only what signs and what publishes can prove who it is."""
    text = release.WORKFLOW.read_text(encoding="utf-8")
    uses = re.findall(r"uses: (.*)", text + release.TESTS.read_text(encoding="utf-8"))
    assert len(uses) == 8
    assert [line for line in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {}
    wanted = {"build": {"contents": "read", "id-token": "write", "attestations": "write"}}
    wanted["publish"] = {"id-token": "write"}
    assert {name: job["permissions"] for name, job in workflow["jobs"].items()} == wanted
    assert workflow["jobs"]["publish"]["environment"]["name"] == "pypi" and "secrets." not in text
    assert "nox -s release" in text


def test_the_workflow_of_the_tests_runs_what_ci_runs() -> None:
    """A test of the README holds that .ci/run runs its command. The workflow may read the code, and no more."""
    workflow = yaml.safe_load(release.TESTS.read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    assert job["steps"][-1]["run"] == ".ci/run" and os.access(str(ROOT / ".ci" / "run"), os.X_OK)
    assert workflow["permissions"] == {} and job["permissions"] == {"contents": "read"}


def test_the_issue_forms_ask_for_the_doctor() -> None:
    for form in release.FORMS:
        fields = {field.get("id"): field for field in yaml.safe_load(form.read_text(encoding="utf-8"))["body"]}
        assert fields["doctor"]["attributes"]["label"] == "python -m ddpfix doctor --json"
        assert fields["doctor"]["validations"]["required"] is True


def test_the_recipe_is_rendered() -> None:
    pytest.importorskip("rattler_build", reason="NOT RUN: the tools are in another environment; nox -s release runs it")
    recipe: Any = release.render_recipe()
    assert recipe["package"] == {"name": "ddpfix", "version": __version__} and recipe["build"]["noarch"] == "python"
