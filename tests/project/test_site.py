"""The site builds without warnings, its links work, and its API pages are complete."""

import html
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import griffe
import pytest
import typer

import zeno
from zeno.cli.app import app

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
PUBLIC: list[str] = importlib.import_module("zeno").__all__


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The built site, and the output of the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # as in the Makefile
    built = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=200)
    assert built.returncode == 0, built.stderr
    return folder, built.stdout + built.stderr


def test_the_site_builds_without_a_warning(site: tuple[Path, str]) -> None:
    folder, said = site
    assert "WARNING" not in said
    assert "ERROR" not in said
    for page in PAGES:
        name = page.relative_to(DOCS).with_suffix(".html")
        assert (folder / (name.with_name("index.html") if name.stem == "README" else name)).is_file()


LOADED = [  # what a browser loads without a click, unlike the target of a link
    r"<(?:script|img|iframe|source|video|audio|embed|input)\b[^>]*\bsrc=[\"']?((?:https?:)?//[^\"' >]+)",
    r"<link\b[^>]*\bhref=[\"']?((?:https?:)?//[^\"' >]+)",
    r"<object\b[^>]*\bdata=[\"']?((?:https?:)?//[^\"' >]+)",
    r"<(?:image|use)\b[^>]*\bhref=[\"']?((?:https?:)?//[^\"' >]+)",
    r"@import\s+[\"']?((?:https?:)?//[^\"' ;]+)",
    r"url\([\"']?((?:https?:)?//[^\"')]+)",
]


def outside(text: str) -> list[str]:
    return [address for form in LOADED for address in re.findall(form, text)]


def test_the_site_loads_nothing_from_another_host(site: tuple[Path, str]) -> None:
    files = [file for file in site[0].rglob("*") if file.suffix in (".html", ".css", ".svg")]
    assert len(files) > len(PAGES)
    assert {str(file): found for file in files if (found := outside(file.read_text(encoding="utf-8")))} == {}


@pytest.mark.parametrize(
    "text",
    [
        '<script async src="https://unpkg.com/mermaid">',
        "<img alt=x src=//example.org/x.png>",
        '<link rel="stylesheet" href="https://fonts.googleapis.com/css">',
        "body { background: url(http://example.org/x.png) }",
    ],
)
def test_resources_from_other_hosts_are_detected(text: str) -> None:
    assert outside(text)
    assert not outside('<a href="https://arxiv.org/abs/1805.10032">')


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_links_from_the_readme_lead_somewhere() -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        links = re.findall(r"\]\(([^)#:]+)(?:#([^)]*))?\)", (ROOT / name).read_text(encoding="utf-8"))
        assert [link for link, _ in links if not (ROOT / link).exists()] == []
        for link, anchor in links:
            if anchor:
                headings = re.findall(r"^#+ (.*)", (ROOT / link).read_text(encoding="utf-8"), flags=re.MULTILINE)
                assert anchor in map(slug, headings), f"{link}#{anchor}"


def test_the_number_of_rules_and_faults_is_stated_correctly() -> None:
    page = " ".join((DOCS / "index.md").read_text(encoding="utf-8").split())
    assert f"{len(zeno.RULES) - 1} other rules, {len(zeno.FAULTS)} faults" in page
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    counts = len(zeno.RULES), len(zeno.PRE_AGGREGATORS), len(zeno.FAULTS)
    assert "{} rules, {} pre-aggregation steps and {} faults".format(*counts) in readme


def test_the_command_line_page_has_every_command_and_option(site: tuple[Path, str]) -> None:
    page = html.unescape((site[0] / "command-line.html").read_text(encoding="utf-8"))
    group: Any = typer.main.get_command(app)
    context = typer.Context(group, info_name="zeno")
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert f"zeno {name}" in page
        assert command.help.splitlines()[0] in re.sub(r"</?code>", "`", page)
        options = [param.opts[0] for param in command.params if param.opts[0].startswith("-")]
        assert [option for option in options if option not in page] == []


# The API pages.


def resolve(path: str) -> object:
    """The object of a path such as zeno.Run, or zeno.rules.chain.chain where a function hides its module."""
    for cut in range(path.count(".") + 1, 0, -1):
        module, rest = ".".join(path.split(".")[:cut]), path.split(".")[cut:]
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        for name in rest:
            found = getattr(found, name)
        return found
    raise AssertionError(f"{path} does not exist.")


def test_formulas_in_docstrings_are_not_taken_for_tags(site: tuple[Path, str]) -> None:
    page = (site[0] / "api" / "rules.html").read_text(encoding="utf-8")
    assert "lr * &lt;grad f_r(x), u" in page
    assert "<grad" not in page


def test_every_public_name_is_on_an_api_page() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    paths = re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE)
    assert len(paths) == len(set(paths))
    shown = [id(resolve(path)) for path in paths]
    assert [name for name in PUBLIC if id(getattr(zeno, name)) not in shown] == []


def test_every_public_name_has_a_docstring() -> None:
    package = griffe.load("zeno", search_paths=[ROOT / "src"], resolve_aliases=True)
    assert [name for name in PUBLIC if package[name].docstring is None] == []
    functions = [name for name in PUBLIC if inspect.isfunction(getattr(zeno, name))]
    assert [name for name in functions if not getattr(zeno, name).__doc__] == []  # some have the name of a module
