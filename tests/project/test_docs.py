"""The pages: the site builds, their code runs, and their commands are ones that the command line takes."""

import functools
import importlib
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import griffe
import pytest
import torch
import torch.distributed as dist
from typer.testing import CliRunner

import zeno
from benchmarks import show
from zeno.cli import app as cli
from zeno.problem import download, tasks
from zeno.report.page import live
from zeno.training import run as settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
NAMES = [str(page.relative_to(DOCS)) for page in PAGES]
FENCE = r"^( *)```{language}\n(.*?)^\1```"


def blocks(page: str, language: str) -> list[str]:
    found = re.findall(FENCE.format(language=language), page, flags=re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(text) for _, text in found]


# The site.


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The built site, and what was said while it was built."""
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


LOADED = [  # what a browser fetches by itself, unlike the target of a link
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
def test_what_another_host_would_serve_is_seen(text: str) -> None:
    assert outside(text)
    assert not outside('<a href="https://arxiv.org/abs/1805.10032">')


def test_links_from_the_readme_lead_somewhere() -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / name).read_text(encoding="utf-8"))
        assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_first_page_counts_rules_and_faults() -> None:
    page = " ".join((DOCS / "index.md").read_text(encoding="utf-8").split())
    assert f"{len(zeno.RULES) - 1} other rules, {len(zeno.FAULTS)} ways of going wrong" in page


# The API pages.


def resolve(path: str) -> object:
    """The object of a path such as zeno.Run, or zeno.train.train where a function hides the module of its name."""
    for cut in range(path.count(".") + 1, 0, -1):
        module, rest = ".".join(path.split(".")[:cut]), path.split(".")[cut:]
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        for name in rest:
            found = getattr(found, name)
        return found
    raise AssertionError(f"There is no {path}.")


def test_every_public_name_is_on_an_api_page() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    paths = re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE)
    assert len(paths) == len(set(paths))
    shown = [id(resolve(path)) for path in paths]
    assert [name for name in zeno.__all__ if id(getattr(zeno, name)) not in shown] == []


def test_every_public_name_has_a_docstring() -> None:
    package = griffe.load("zeno", search_paths=[ROOT / "src"], resolve_aliases=True)
    assert [name for name in zeno.__all__ if package[name].docstring is None] == []
    functions = [name for name in zeno.__all__ if inspect.isfunction(getattr(zeno, name))]
    assert [name for name in functions if not getattr(zeno, name).__doc__] == []  # some hide behind their module


# The code and the commands.

MAKE_TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
NOT_OURS = ("chmod", "export", "ray", "scp", "ssh")
FEW_STEPS = 100
IMAGES = zeno.Dataset(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), classes=10)


def commands(page: str) -> list[list[str]]:
    """What a reader is told to type: fenced, indented, or in the text, as words of a shell."""
    fenced = [line for language in ("bash", "console") for block in blocks(page, language) for line in lines(block)]
    rest = re.sub(r"^( *)```.*?^\1```$", "", page, flags=re.DOTALL | re.MULTILINE)
    indented = [line.strip() for line in lines(rest) if re.match(r" {4}(?:zeno|make|pip) ", line)]
    in_text = re.findall(r"(?<!`)`(zeno [^`]+)`(?!`)", rest)
    in_text = [text if text.count(" ") > 1 else f"{text} --help" for text in in_text]  # of a name, that there is one
    found = []
    for line in [*fenced, *indented, *in_text]:
        words = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=";&|<>")
        words.whitespace_split = True
        command: list[str] = []
        for word in [*words, ";"]:
            if set(word) <= set(";&|"):
                found.append(command)
                command = []
            else:
                command.append(word)
    return [command for command in found if command]


def lines(block: str) -> list[str]:
    return block.replace("\\\n", " ").splitlines()


def check(command: list[str]) -> None:
    """Refuses a command that would not work as it is written, in a folder that has the runs it names."""
    program, *arguments = command
    if program == "zeno":
        result = CliRunner().invoke(cli.app, arguments)
        allowed = (0, cli.EXIT_SUSPECT) if "--fail-on-suspect" in arguments else (0,)
        assert result.exit_code in allowed, f"{shlex.join(command)}: {result.exception}\n{result.output}"
    elif program == "make":
        assert arguments[0] in MAKE_TARGETS, shlex.join(command)
    elif program == "pip":
        wanted = re.fullmatch(r"zeno-sgd(?:\[([a-z,]+)\])?", arguments[-1])
        assert arguments[0] == "install", shlex.join(command)
        assert wanted, shlex.join(command)
        assert set((wanted[1] or "ray").split(",")) <= set(EXTRAS), shlex.join(command)
    elif program == "python":
        assert arguments[0] == "-m", shlex.join(command)
        assert find_spec(arguments[1]) is not None, shlex.join(command)
    else:
        assert program in NOT_OURS, f"What is {shlex.join(command)}?"


@pytest.fixture(scope="module")
def a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run, made by the real command."""
    folder = tmp_path_factory.mktemp("made") / "run"
    flags = "--workers 5 --faulty 2 --fault crash --rule zeno --trim 2 --steps 3 --out"
    result = CliRunner().invoke(cli.app, ["train", *flags.split(), str(folder)])
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def dry(a_run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands go up to where long work would begin, or a download; what is short they do.

    Everything that a user can get wrong is found before that: the settings have become runs, and these were tried.
    """
    execute = cli._execute

    def would_train(runs: Mapping[str, zeno.Run], setup: zeno.Setup, folder: Path, *rest: Any) -> None:
        for run in runs.values():
            assert isinstance(run.task, str)
            if run.task not in zeno.TASKS:
                tasks.load(run.task)  # which says what is wrong with it
            if run.model is not None:
                tasks.with_model(zeno.Task(IMAGES, IMAGES, torch.nn.Identity), run.model).model()
        [first, *others] = runs.values()
        if not others and first.task == "digits" and first.steps <= FEW_STEPS and setup == zeno.Setup():
            execute(runs, setup, folder, *rest)

    def would_fill(planned: Any, folder: Path, *rest: Any) -> None:
        would_train({cell.key: cell.run for cell in planned.cells}, zeno.Setup(cluster="ray"), folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "matrix.toml").write_text(planned.to_toml(), encoding="utf-8")  # for one who resumes it

    def would_reproduce(scale: Any, figures: Any, *rest: Any) -> None:
        assert figures
        would_train({scale.name: scale.run()}, zeno.Setup(cluster="ray"), Path())

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_execute", would_train)
    monkeypatch.setattr(cli, "_fill", would_fill)
    monkeypatch.setattr(cli, "_reproduce", would_reproduce)
    monkeypatch.setattr(
        settings, "try_rule", functools.cache(settings.try_rule)
    )  # of 22 faults each, and some are slow
    monkeypatch.setattr(download, "fetch", lambda *given: None)
    monkeypatch.setattr(show, "_measure", lambda *given: None)
    monkeypatch.setattr(live, "all_over", lambda *given: False)
    monkeypatch.setattr(live, "serve", lambda *given, **named: False)
    for name in ("RUN", "OTHER_RUN", "runs/train-20260101-120000"):
        shutil.copytree(a_run, name)
    for name in ("runs/reproduce-small-20260101-120000", "docs/reproduction/small"):
        Path(name).mkdir(parents=True)
        shutil.copy(DOCS / "reproduction/small/scale.toml", name)


def before_and_after(diff: str, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs both sides of a diff of a script for torchrun, as the one rank of a group."""
    init_process_group = dist.init_process_group
    batches = [(torch.randn(4, 10), torch.zeros(4, dtype=torch.int64))]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    for side in "-+":
        where = f"file://{Path.cwd() / f'store{side}'}"
        alone = functools.partial(init_process_group, init_method=where, rank=0, world_size=1)
        monkeypatch.setattr(dist, "init_process_group", alone)
        code = "\n".join(line[1:] for line in diff.splitlines() if line[:1] in ("", " ", side))
        exec(compile(code, "diff", "exec"), {**names, "batches": batches})
    monkeypatch.setattr(dist, "init_process_group", init_process_group)


@pytest.mark.usefixtures("dry")
@pytest.mark.parametrize("name", NAMES)
def test_the_code_of_a_page_runs_and_its_commands_work(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    code = blocks(page, "python")
    namespace: dict[str, Any] = {"__name__": "page"}
    with torch.random.fork_rng(devices=[]):
        for block in code:
            exec(compile(block, name, "exec"), namespace)
        for diff in blocks(page, "diff"):
            before_and_after(diff, namespace, monkeypatch)
    printed = capsys.readouterr().out.splitlines()
    promised = [line for block in code for line in re.findall(r"# prints (.*)", block)]
    assert [line for line in promised if line not in printed] == []
    for command in commands(page):  # which may look at what the code has written
        check(command)


@pytest.mark.usefixtures("dry")
def test_the_commands_of_the_readme_work() -> None:  # tests/test_readme.py runs its code
    found = commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(found) > 20
    for command in found:
        check(command)


def test_commands_are_found_where_readers_find_them() -> None:
    page = textwrap.dedent(
        """
        Some `zeno tasks`, not `zeno.Run`.

            zeno rules; zeno faults                   # two
            make demo     # a comment

        1. Nested:

            ```bash
            export X=1
            zeno train --rule 'zeno(trim=3)' \\
                --steps 5 > /dev/null && zeno suspects RUN
            ```
        """
    )
    found = [shlex.join(command) for command in commands(page)]
    assert sorted(found) == [
        "export X=1",
        "make demo",
        "zeno faults",
        "zeno rules",
        "zeno suspects RUN",
        "zeno tasks --help",
        "zeno train --rule 'zeno(trim=3)' --steps 5 '>' /dev/null",
    ]


@pytest.mark.usefixtures("dry")
@pytest.mark.parametrize(
    "mistake",
    [
        "zeno trian",
        "zeno train --falty 3",
        "zeno train --rule zenoo",
        "zeno train --rule 'zeno(trimm=3)'",
        "zeno train --fault label_flop --faulty 3",
        "zeno train --split by_labels",
        "zeno train --task cifar",
        "zeno train --model resnet",
        "zeno train --faulty 21",
        "zeno train --optimizer adamm",
        "zeno train --cluster rayy",
        "zeno train --steps many",
        "zeno train --resume runs/nobody",
        "zeno compare --rule best",
        "zeno matrix --fault label_flop --faulty 3",
        "zeno matrix --resume RUN",
        "zeno reproduce label_flop",
        "zeno reproduce --scale large",
        "zeno suspects runs/nobody",
        "zeno report RUN --outt both.html",
        "zeno data imagenet",
        "zeno bench speed",
        "make nothing",
        "pip install 'zeno-sgd[nothing]'",
        "python -m zeno.nothing",
        "rm -rf /",
    ],
)
def test_a_mistake_in_a_command_is_found(mistake: str) -> None:
    with pytest.raises(AssertionError):
        check(shlex.split(mistake))
