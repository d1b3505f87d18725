"""The code and the commands on the pages work."""

import functools
import re
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from typer.testing import CliRunner

import zeno
from zeno.cli import inspection, training
from zeno.cli.app import app
from zeno.problem import download, tasks
from zeno.problem.registry import parse
from zeno.report.page import live
from zeno.studies import matrix
from zeno.studies.reproduction import reproduce
from zeno.training import dry_run as trials

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
NAMES = [str(page.relative_to(DOCS)) for page in sorted(DOCS.rglob("*.md"))]
FENCE = r"^( *)```{language}\n(.*?)^\1```"
MAKE_TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
NOT_OURS = ("chmod", "docker", "export", "ray", "scp", "ssh")
FEW_STEPS = 100
IMAGES = zeno.Dataset(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), classes=10)


def blocks(page: str, language: str) -> list[str]:
    found = re.findall(FENCE.format(language=language), page, flags=re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(text) for _, text in found]


def commands(page: str) -> list[list[str]]:
    """The commands on a page, fenced, indented or in the text, split into words as by a shell."""
    fenced = [line for language in ("bash", "console") for block in blocks(page, language) for line in lines(block)]
    rest = re.sub(r"^( *)```.*?^\1```$", "", page, flags=re.DOTALL | re.MULTILINE)
    indented = [line.strip() for line in lines(rest) if re.match(r" {4}(?:zeno|make|pip) ", line)]
    in_text = re.findall(r"(?<!`)`(zeno [^`]+)`(?!`)", rest)
    in_text = [text if text.count(" ") > 1 else f"{text} --help" for text in in_text]  # only that it exists
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
    """Raises for a command that would not work as written, in a folder that holds the runs it names."""
    program, *arguments = command
    if program == "zeno":
        result = CliRunner().invoke(app, arguments)
        allowed = (0, inspection.EXIT_SUSPECT) if "--fail-on-suspect" in arguments else (0,)
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
        module = find_spec(arguments[1])
        assert module is not None, shlex.join(command)
        if module.submodule_search_locations is not None:  # a package
            assert find_spec(f"{arguments[1]}.__main__") is not None, shlex.join(command)
    else:
        assert program in NOT_OURS, f"Unknown program: {shlex.join(command)}"


@pytest.fixture(scope="module")
def a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run, made by the real command."""
    folder = tmp_path_factory.mktemp("made") / "run"
    flags = "--workers 5 --faulty 2 --fault crash --rule zeno --trim 2 --steps 3 --out"
    result = CliRunner().invoke(app, ["train", *flags.split(), str(folder)])
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def dry(a_run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Stops commands before a long training or a download; short runs are executed.

    By then all mistakes of a user are detected: the settings have become runs, and these have been validated.
    """
    execute = training._execute

    def would_train(
        runs: Mapping[str, zeno.Run], execution: zeno.ExecutionSettings, folder: Path, *rest: Any, **more: Any
    ) -> None:
        for run in runs.values():
            trials.dry_run(run)
            assert isinstance(run.task, str)
            if ":" in run.task or parse(run.task)[0] not in zeno.TASKS:
                zeno.load_task(run.task)  # raises for a mistake
            if run.model is not None:
                tasks.with_model(zeno.Task(IMAGES, IMAGES, torch.nn.Identity), run.model).model()
        [first, *others] = runs.values()
        if not others and first.task == "digits" and first.steps <= FEW_STEPS and execution == zeno.ExecutionSettings():
            execute(runs, execution, folder, *rest, **more)

    def would_fill(planned: Any, folder: Path, *rest: Any) -> None:
        would_train({job.name: job.run for job in planned.jobs()}, zeno.ExecutionSettings(cluster="ray"), folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "matrix.toml").write_text(planned.to_toml(), encoding="utf-8")  # to resume it

    def would_reproduce(scale: Any, figures: Any, *rest: Any) -> None:
        assert figures
        would_train({scale.name: scale.run()}, zeno.ExecutionSettings(cluster="ray"), Path())

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "_execute", would_train)
    monkeypatch.setattr(matrix, "run", would_fill)
    monkeypatch.setattr(reproduce, "run", would_reproduce)
    monkeypatch.setattr(reproduce, "jobs_of", lambda *given: [])  # needs the device, such as cuda
    monkeypatch.setattr(trials, "try_rule", functools.cache(trials.try_rule))  # some are slow
    monkeypatch.setattr(download, "fetch", lambda *given: None)
    monkeypatch.setattr(live, "all_over", lambda *given: False)
    monkeypatch.setattr(live, "serve", lambda *given, **named: False)
    for name in ("RUN", "OTHER_RUN", "runs/train-20260101-120000"):
        shutil.copytree(a_run, name)
    Path("runs/compare-20260101-120000").mkdir()
    Path("runs/compare-20260101-120000/compare.toml").write_text('rule = ["mean"]')
    for name in ("runs/reproduce-small-20260101-120000", "docs/reproduction/small"):
        Path(name).mkdir(parents=True)
        shutil.copy(DOCS / "reproduction/small/scale.toml", name)


def before_and_after(diff: str, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs both sides of a diff of a torchrun script, as the only rank of a group."""
    init_process_group = dist.init_process_group
    batches = [(torch.randn(4, 10), torch.zeros(4, dtype=torch.int64))]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    for side in "-+":
        where = f"file://{Path.cwd() / f'store{side}'}"
        alone = functools.partial(init_process_group, init_method=where, rank=0, world_size=1)
        monkeypatch.setattr(dist, "init_process_group", alone)
        code = "\n".join(line[1:] for line in diff.splitlines() if line[:1] in ("", " ", side))
        namespace = {**names, "batches": batches}
        exec(compile(code, "diff", "exec"), namespace)
        # The model is freed when gloo's threads are done: they need the interpreter, which its end would not give them.
        time.sleep(0.5)
        del namespace
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
    for command in commands(page):  # after the code, whose run folders they may read
        check(command)


@pytest.mark.usefixtures("dry")
def test_the_commands_of_the_readme_work() -> None:  # test_readme.py runs its code
    found = commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(found) > 10
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
        "zeno bench",
        "make nothing",
        "pip install 'zeno-sgd[nothing]'",
        "python -m zeno.nothing",
        "python -m zeno.rules",
        "rm -rf /",
    ],
)
def test_a_mistake_in_a_command_is_found(mistake: str) -> None:
    with pytest.raises(AssertionError):
        check(shlex.split(mistake))
