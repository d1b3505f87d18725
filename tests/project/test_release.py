"""The files of a release are well formed, and agree about versions."""

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
VERSION: str = PROJECT["project"]["version"]
PINS = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.MULTILINE))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read(*path: str) -> Any:
    return yaml.safe_load(ROOT.joinpath(*path).read_text(encoding="utf-8"))


def on(workflow: Any) -> Any:
    return workflow[True]  # YAML 1.1 reads the key `on` so, and GitHub does not


def commands(workflow: Any) -> list[str]:
    """The lines that a workflow runs, one for each command."""
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    return [line for step in steps for line in step.get("run", "").splitlines() if line]


# Versions.


def test_the_changelog_begins_with_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d\S*)\] - (\d{4}-\d\d-\d\d)$", changelog, flags=re.MULTILINE)
    headings = re.findall(r"^## .*$", changelog, flags=re.MULTILINE)
    assert headings[0] == "## [Unreleased]"
    assert len(released) == len(headings) - 1, "every other heading has a version and a date"
    assert released[0] == (VERSION, str(read("CITATION.cff")["date-released"]))


def test_the_citation_has_this_version_and_the_paper() -> None:
    citation = read("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == VERSION
    assert citation["license"] == PROJECT["project"]["license"]
    assert {"title", "message", "authors"} <= set(citation)
    [paper] = citation["references"]
    assert [author["family-names"] for author in paper["authors"]] == ["Xie", "Koyejo", "Gupta"]
    assert paper["year"] == 2019


def test_the_lowest_versions_are_those_of_the_ranges() -> None:
    ranges = dict(re.findall(r"^([a-z]+)>=([\d.]+)", "\n".join(PROJECT["project"]["dependencies"]), flags=re.MULTILINE))
    text = (ROOT / ".github" / "lowest.txt").read_text(encoding="utf-8")
    lowest = dict(re.findall(r"^([a-z]+)==(\S+)$", text, flags=re.MULTILINE))
    assert set(lowest) == set(ranges) - {"torch", "tomli"}

    def numbers(version: str) -> list[int]:
        return [*map(int, version.split(".")), 0, 0][:3]

    for name, version in lowest.items():
        assert numbers(version) == numbers(ranges[name]), name


def test_pythons_of_the_classifiers_are_those_that_the_workflow_tests() -> None:
    tested = read(".github", "workflows", "tests.yml")["jobs"]["ranges"]["strategy"]["matrix"]["python"]
    stated = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert tested == stated
    assert PROJECT["project"]["requires-python"] == f">={tested[0]}"


# Workflows and forms.


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_least_rights_and_runs_what_exists(path: Path) -> None:
    workflow = read(str(path))
    assert on(workflow)
    assert workflow["permissions"] == {"contents": "read"}
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    for words in map(shlex.split, commands(workflow)):
        if words[0] == "make":
            assert words[1] in targets
        elif words[0].startswith("."):
            assert (ROOT / words[0]).stat().st_mode & 0o100, f"{words[0]} is not executable"
        for word in words:
            if word.startswith("tests/"):
                assert (ROOT / word).exists(), word
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            assert "@" in step.get("uses", "@"), "an action without a version"


def test_only_the_release_of_a_tag_may_publish_and_holds_no_secret() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    release = yaml.safe_load(text)
    assert on(release) == {"push": {"tags": ["v*"]}}
    assert "secrets." not in text
    assert release["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert release["jobs"]["publish"]["needs"] == "build"
    extras = release["jobs"]["build"]["steps"][3]["env"]["EXTRAS"].split()
    assert set(extras) == set(PROJECT["project"]["optional-dependencies"]) - {"docs", "bench", "dev"}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_a_form_asks_for_something(path: Path) -> None:
    form = read(str(path))
    if path.name == "config.yml":
        assert form == {"blank_issues_enabled": True}
        return
    assert {"name", "description", "body"} <= set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    ids = [field["id"] for field in fields]
    assert len(ids) == len(set(ids))
    assert all(field["attributes"]["label"] for field in fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


# The container.


def test_the_image_has_the_tested_versions() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    found = dict(re.findall(r"(torch|ray)==([\d.]+)", text))
    assert found == {name: PINS[name] for name in ("torch", "ray")}
    python = re.search(r"^FROM python:(3\.\d+)-slim$", text, flags=re.MULTILINE)
    assert python
    assert f"Python :: {python[1]}" in "\n".join(PROJECT["project"]["classifiers"])


def test_the_image_is_built_from_what_the_package_needs() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    needed = {path.removeprefix("/") for path in PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]}
    assert needed | {"README.md", "LICENSE", "pyproject.toml"} == kept
    assert all((ROOT / name).exists() for name in kept)


def test_the_cluster_of_the_compose_file_is_reachable_only_from_within() -> None:
    compose = read("compose.yaml")
    assert set(compose["services"]) == {"head", "worker"}
    assert compose["services"]["worker"]["deploy"]["replicas"] == 2
    assert compose["networks"]["ray"]["internal"] is True
    for service in compose["services"].values():
        assert "ports" not in service
        assert service["networks"] == ["ray"]
        assert ":?" in service["environment"]["RAY_AUTH_TOKEN"], "without a token, nothing may start"
        assert "ray start" in service["command"]


def test_the_security_page_names_a_private_way_and_its_links_lead_somewhere() -> None:
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "Report a vulnerability" in page
    links = re.findall(r"\]\(([^)#:]+)", page)
    assert len(links) > 3
    assert [link for link in links if not (ROOT / link).exists()] == []
