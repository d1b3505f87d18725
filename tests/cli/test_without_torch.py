"""Help, lists and errors appear at once: they import neither torch nor matplotlib nor ray."""

import inspect
import json
import subprocess
import sys
from typing import Any

import pytest

import zeno
from zeno.cli.catalogue import check_names, constant
from zeno.faults.fault import SCHEDULE
from zeno.problem.models import MODELS
from zeno.problem.splits import SPLITS
from zeno.studies import compare, matrix

HEAVY = ["torch", "matplotlib", "ray"]
CODE = f"""
import contextlib, io, json, sys
from zeno.cli import main

for command in json.load(sys.stdin):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown), contextlib.suppress(SystemExit):
        sys.argv = ["zeno", *command.split()]
        main()
    imported = [name for name in {HEAVY} if name in sys.modules]
    print(json.dumps([shown.getvalue(), imported]))
"""
QUICK = {
    "--help": "Usage",
    "--version": zeno.__version__,
    "-h": "Usage",
    "train -h": "--worker-momentum",
    "rules -h": "List the aggregation rules",
    "train --steps abc": "error: Invalid value for '--steps'",
    "train --rule zeno-auto": "Unknown rule 'zeno-auto'. Did you mean zeno_auto?",
    "train --rule ZenoAuto": "Unknown rule 'ZenoAuto'. Did you mean zeno_auto?",
    "compare --resume nowhere": "There is no comparison to resume in nowhere",
    "train --help": "--worker-momentum",
    "compare --help": "--eval-every",
    "matrix --help": "--faulty",
    "reproduce --help": "--scale",
    "watch --help": "--port",
    "rules": "krum(faulty)",
    "faults": "sign_flip(scale=1.0)",
    "tasks": "dirichlet(alpha=0.5)",
    "trian": "No such command",
    "train --falty 3": "No such option",
    "train --workers many": "Invalid value for '--workers'",
    "train --rule krumm": "Unknown rule 'krumm'. Did you mean krum? There are: ",
    "train --rule nnm+krumm": "Unknown rule 'krumm'",
    "train --rule zeno(trimm=3)": "does not fit zeno(trim, rho=0.0005",
    "train --fault zero+crush": "Unknown fault 'crush'. Did you mean crash?",
    "train --task cifar": "Unknown task 'cifar'. Did you mean cifar10?",
    "train --split by_labels": "Unknown split 'by_labels'. Did you mean by_label?",
    "train --model resnet": "Unknown model 'resnet'",
    "train --model cnn(depth=3)": "does not fit cnn(",
    "train --fault label_flip(on=30)": "Found fault='label_flip(on=30)' without faulty",
    "train --faulty 30 --workers 20": "at most workers=20",
    "train --cluster rayy": "one of local, ray",
    "train --out /": "is not empty",
    "train nothing.toml": "nothing.toml",
    "train --resume nowhere": "There is no run to resume in nowhere",
    "compare --rule best": "Unknown rule 'best'",
    "compare --workers 10": "at most workers=10",
    "matrix --fault label_flop": "Unknown fault 'label_flop'. Did you mean label_flip?",
    "matrix --faulty 3 --faulty 30": "at most workers=20",
    "matrix --resume nowhere": "There is no matrix to resume in nowhere",
    "reproduce --scale large": "Unknown scale 'large'",
    "data imagenet": "Unknown data set 'imagenet'",
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, list[str]]]:
    """Each command's output, and the heavy packages imported until then, in one new process."""
    folder = tmp_path_factory.mktemp("empty")
    process = [sys.executable, "-c", CODE]
    done = subprocess.run(
        process, input=json.dumps(list(QUICK)), cwd=folder, capture_output=True, text=True, timeout=120, check=True
    )
    assert not list(folder.iterdir()), "a mistake leaves no files behind"
    return dict(zip(QUICK, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("command", QUICK)
def test_help_lists_and_mistakes_do_not_wait_for_torch(command: str, answers: dict[str, tuple[str, list[str]]]) -> None:
    shown, imported = answers[command]
    assert QUICK[command] in " ".join(shown.split())
    assert imported == []


def test_importing_the_package_imports_torch_only_when_a_name_is_used() -> None:
    code = "import sys, zeno; zeno.__version__; assert 'torch' not in sys.modules; zeno.Krum; zeno.rules.Krum"
    subprocess.run([sys.executable, "-c", code], check=True)


REGISTRIES: list[tuple[str, str, Any]] = [
    ("rules", "RULES", zeno.RULES),
    ("rules", "PRE_AGGREGATORS", zeno.PRE_AGGREGATORS),
    ("faults", "FAULTS", zeno.FAULTS),
    ("problem.tasks", "TASKS", zeno.TASKS),
    ("problem.models", "MODELS", MODELS),
    ("problem.splits", "SPLITS", SPLITS),
]


@pytest.mark.parametrize(("module", "name", "registry"), REGISTRIES, ids=[name for _, name, _ in REGISTRIES])
def test_the_source_lists_what_the_registry_holds(module: str, name: str, registry: dict[str, Any]) -> None:
    read = constant(module, name)
    assert list(read) == list(registry)
    for key, value in registry.items():
        found, expected = (inspect.signature(one).parameters.values() for one in (read[key], value))
        plain = [[p.replace(annotation=p.empty) for p in parameters] for parameters in (found, expected)]
        assert plain[0] == plain[1], key
        assert inspect.getdoc(read[key]) == inspect.getdoc(value), key


def test_constants_are_read_from_the_source() -> None:
    assert constant("studies.compare", "RULES") == compare.RULES
    assert constant("studies.compare", "DEFAULTS") == compare.DEFAULTS
    assert constant("studies.matrix", "DEFAULTS") == matrix.DEFAULTS  # with a name for a constant in it
    assert constant("faults.fault", "SCHEDULE") == SCHEDULE


def test_names_are_checked_wherever_they_stand() -> None:
    settings = {
        "rule": ["all", "nnm(faulty=3)+mean"],
        "fault": "zero(on=3)+crash",
        "task": "my.module:task",
        "model": 3,
    }
    check_names(settings, also=("all",))
    with pytest.raises(ValueError, match="Unknown rule 'all'"):
        check_names(settings)
    with pytest.raises(ValueError, match="Expected a name, or a name with parameters"):
        check_names({"rule": "zeno("})
