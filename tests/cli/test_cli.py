"""The command line as a user or a script calls it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import fields
from pathlib import Path

import pytest
import typer
from rich.table import Table
from typer.testing import CliRunner

import zeno
from support.commands import run
from zeno.cli.console import PlainCommand, out, warnings_as_notes
from zeno.records.folder import MODEL_FILE, read
from zeno.report.run_view import runs_in
from zeno.workers.ray import session

SMALL = ["--workers", "5", "--steps", "4", "--eval-every", "2"]


def test_compare_trains_every_rule_and_writes_the_run_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, "compare", *SMALL, "--faulty", 2, "--out", tmp_path / "out") == 0
    shown = capsys.readouterr().out
    for name in ("mean without faults", "median", "krum(faulty=1)", "zeno(trim=3, batch_size=64)", "zeno_auto"):
        assert name in shown
    assert f"curves.png are in {tmp_path / 'out'}" in shown.replace("\n", "")
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")
    folders = sorted(folder.name for folder in (tmp_path / "out").iterdir() if folder.is_dir())
    own = ["krum-faulty-1", "mean", "mean-without-faults", "median", "zeno-trim-3-batch_size-64", "zeno_auto"]
    assert folders == own
    assert all(len(read(tmp_path / "out" / folder)) == 4 for folder in folders)


def test_json_is_all_that_is_printed_for_scripts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code = run(monkeypatch, "compare", *SMALL, "--rule", "mean", "--rule", "zeno", "--json", "--out", tmp_path / "out")
    assert code == 2  # 12 faulty of 5 workers
    capsys.readouterr()
    arguments = ["--rule", "mean", "--rule", "zeno", "--faulty", 2, "--json", "--out", tmp_path / "out"]
    assert run(monkeypatch, "compare", *SMALL, *arguments) == 0
    results = json.loads(capsys.readouterr().out)
    assert [r["name"] for r in results["runs"]] == ["mean without faults", "mean", "zeno(trim=3, batch_size=64)"]
    assert results["runs"][1]["faulty_kept"] == 1.0
    assert (results["task"], results["workers"], results["fault"]) == ("digits", 5, "label_flip")
    assert [r["faulty"] for r in results["runs"]] == [0, 2, 2]
    assert [r["rule"] for r in results["runs"]] == ["mean", "mean", "zeno(trim=3, batch_size=64)"]
    assert [r["folder"] for r in results["runs"]][1] == str(tmp_path / "out" / "mean")
    assert all(r["suspects"] == [] for r in results["runs"])
    assert results["runs"][1]["accuracy"] == read(tmp_path / "out" / "mean")[-1].accuracy
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == results


def test_train_reads_toml_and_flags_win(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = tmp_path / "run.toml"
    settings.write_text('workers = 5\nsteps = 7\nrule = "zeno(trim=1)"\nfault = "sign_flip(3)"\nfaulty = 1\n')
    assert run(monkeypatch, "train", settings, "--steps", 3, "--trim", 2, "--out", tmp_path / "out") == 0
    records = read(tmp_path / "out")
    assert len(records) == 3
    assert records[0].kept is not None
    assert sum(records[0].kept) == 3

    # The folder's own settings repeat the run.
    assert run(monkeypatch, "train", tmp_path / "out" / "run.toml", "--out", tmp_path / "again") == 0
    assert read(tmp_path / "again") == records


def test_compare_takes_the_rule_of_a_file_in_place_of_the_one_of_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "run.toml").write_text('workers = 5\nsteps = 1\nfaulty = 1\nrule = "zeno(trim=4, batch_size=2)"\n')
    assert run(monkeypatch, "compare", tmp_path / "run.toml", "--json", "--out", tmp_path / "x[bold]y") == 0
    names = [r["name"] for r in json.loads(capsys.readouterr().out)["runs"]]
    own = "zeno(trim=4, batch_size=2)"
    assert names == ["mean without faults", "mean", "median", "krum(faulty=1)", "zeno_auto", own]


def test_folders_are_printed_as_they_are_named_and_never_shared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, "train", *SMALL, "--rule", "zeno", "--trim", 1, "--out", tmp_path / "x[bold]y") == 0
    assert "x[bold]y" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form: "now")
    for _ in range(2):
        assert run(monkeypatch, "train", *SMALL, "--rule", "zeno", "--trim", 1) == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_every_setting_of_a_run_has_a_flag(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("train", "compare"):
        monkeypatch.setenv("COLUMNS", "200")
        assert run(monkeypatch, command, "--help") == 0
        shown = capsys.readouterr().out
        for name in [f.name for f in fields(zeno.Run)] + ["trim", "rho", "zeno_batch_size", "json", "out"]:
            assert f"--{name.replace('_', '-')} " in shown


def test_a_rule_without_trim_gets_the_default_that_the_help_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(monkeypatch, "train", "--help") == 0
    (trim,) = [line for line in capsys.readouterr().out.splitlines() if "--trim " in line]
    assert "[default: (4, as in the paper)]" in trim
    flags = ["--steps", 1, "--workers", 11]
    for rule in ("zeno", "krum"):
        assert run(monkeypatch, "train", *flags, "--rule", rule, "--out", tmp_path / rule) == 0
    assert 'rule = "zeno(trim=4)"' in (tmp_path / "zeno" / "run.toml").read_text()
    assert 'rule = "krum(faulty=4)"' in (tmp_path / "krum" / "run.toml").read_text()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train", "A TOML file with settings, such as the run.toml of a run folder."),
        ("train", "Shell command to run for each new suspect; it receives ZENO_WORKER, "),
        ("suspects", "Run folders. The folder of a comparison stands for all of its runs."),
        ("data", "Data set: cifar10, mnist."),
        ("reproduce", "Figures of the paper, such as label_flip"),
    ],
)
def test_help_says_what_arguments_and_options_are(
    command: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(monkeypatch, command, "--help") == 0
    assert words in capsys.readouterr().out


MISTAKES = [
    (["trian"], "No such command 'trian'"),
    (["train", "--steps", "abc"], "Invalid value for '--steps'"),
    (["train", "--falty", "3"], "No such option"),
    (["suspects"], "Missing argument"),
    (["train", "--schedule", "linear"], "Did you mean linearlr? There are: lambdalr"),  # no private name of torch's
    (["train", "--rule", "zen"], "Unknown rule 'zen'"),
    (["train", "--rule", "zeno", "--trim", "20"], "Found 20 with trim=20"),
    (["train", "--faulty", "21"], "The setting faulty must be at most workers=20"),
    (["train", "--task", "no.such.module:task"], "Cannot load the task 'no.such.module:task'"),
    (["train", "--task", "cifar"], "Unknown task 'cifar'. Did you mean cifar10?"),
    (["train", "--task", "cifar10", "--data", "no-such-folder"], "needs the file data_batch_1.bin in no-such-folder"),
    (["train", "--model", "resnet"], "Unknown model 'resnet'"),
    (["train", "--model", "cnn(depth=3)"], "does not fit cnn("),
    (["train", "--split", "by_label(3)"], "does not fit by_label()"),
    (["train", "no.toml"], "There is no file no.toml. Name a TOML file with settings, such as RUN/run.toml."),
    (["compare", "."], ". is a folder. Name a TOML file with settings, such as run.toml."),
    (["train", "--asynchronous", "--delay", "slow(10, on=30)"], "on of at most workers=20. Found on=30"),
    (["train", "--asynchronous", "--delay", "uniform(0, 5)", "--cluster", "ray"], "'uniform(high=5)'. Leave it out"),
    (["compare", "--rule", "best"], "Unknown rule 'best'"),
    (["compare", "--trim", "25"], "A comparison needs trim from 0"),
    (["compare", "--workers", "10"], "The setting faulty must be at most workers=10"),
    (["data", "imagenet"], "Unknown data set 'imagenet'"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=[" ".join(a) for a, _ in MISTAKES])
def test_mistakes_end_with_one_clear_line_and_exit_code_2(
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *arguments) == 2
    shown = capsys.readouterr()
    *before, line = shown.err.splitlines()
    assert line.startswith("error: ")
    assert words in line
    assert not before or "--task" in arguments, "only a task is loaded after the progress bar is there"
    assert shown.out == ""
    assert not list(tmp_path.rglob("*.jsonl")), "a mistake leaves no run behind"


def test_a_value_of_the_wrong_type_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, "train", "--workers", "many") == 2
    assert "--workers" in capsys.readouterr().err
    (tmp_path / "bad.toml").write_text("workers = [")
    assert run(monkeypatch, "train", tmp_path / "bad.toml") == 2
    assert "is not valid TOML" in capsys.readouterr().err


def test_help_and_tables_show_text_in_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer()

    @app.command(cls=PlainCommand)
    def show(name: str = typer.Option("", help="A name [bench].")) -> None:
        """Show it [bold]."""
        out.print(Table("[red]", "zeno-sgd[ray]", title="[i]"))

    shown = CliRunner().invoke(app, ["--help"]).output
    assert "A name [bench]." in shown
    assert "Show it [bold]." in shown
    app(["--name", "x"], standalone_mode=False)
    written = capsys.readouterr().out
    assert all(text in written for text in ("[red]", "zeno-sgd[ray]", "[i]"))


def test_the_title_of_a_comparison_names_the_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = ["--rule", "mean", "--faulty", 2, "--fault", "sign_flip(on=2)", "--out", tmp_path / "out"]
    assert run(monkeypatch, "compare", *SMALL, *flags) == 0
    assert "digits, 2 of 5 workers faulty (sign_flip(on=2))" in capsys.readouterr().out


def test_a_comparison_is_resumed_with_its_own_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out, rules = tmp_path / "out", ["--rule", "zeno(trim=2)", "--rule", "mean"]
    assert run(monkeypatch, "compare", *SMALL, *rules, "--faulty", 2, "--out", out) == 0
    names = ["mean-without-faults", "zeno-trim-2-batch_size-64", "mean"]
    before = {name: read(out / name) for name in names}
    results = json.loads((out / "results.json").read_text())
    model = (out / "mean-without-faults" / MODEL_FILE).read_bytes()
    shutil.rmtree(out / "mean")  # as if it had been interrupted before the last run
    capsys.readouterr()
    assert run(monkeypatch, "compare", "--resume", out, "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in again["runs"]] == [one["name"] for one in results["runs"]]
    assert {name: read(out / name) for name in names} == before
    assert (out / "mean-without-faults" / MODEL_FILE).read_bytes() == model
    assert list(runs_in([out])) == names, "in the order in which they were asked for"
    assert run(monkeypatch, "compare", "--resume", out, "--rule", "krum") == 2
    assert "resumed with its own settings" in capsys.readouterr().err
    assert run(monkeypatch, "compare", out / "compare.toml", "--steps", 1, "--out", tmp_path / "other") == 0
    assert list(runs_in([tmp_path / "other"])) == names


def test_a_folder_that_holds_something_is_never_overwritten(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("data")
    assert run(monkeypatch, "train", *SMALL, "--out", tmp_path) == 2
    assert "is not empty. Name another one with --out" in capsys.readouterr().err
    assert [f.name for f in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("rules", [*zeno.RULES, "zeno_auto"]),
        ("faults", [*zeno.FAULTS, "slow(steps=1)", "chance=1.0", "redraw=False"]),
        ("tasks", [*zeno.TASKS, "small_cnn(dropout=0.25)", "dirichlet(alpha=0.5)"]),
    ],
)
def test_names_are_listed_with_a_description_each(
    command: str, names: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, command) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in names)


def test_more_faulty_workers_than_the_rule_tolerates_are_noted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = ["--rule", "zeno", "--trim", 1, "--faulty", 2]
    assert run(monkeypatch, "train", *SMALL, *flags, "--out", tmp_path / "out") == 0
    assert "note: zeno(trim=1) tolerates 1 faulty worker, but 2 are faulty\n" in capsys.readouterr().err


@pytest.mark.filterwarnings("default")
def test_a_rho_that_outweighs_the_learning_rate_is_noted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = [*SMALL, "--rule", "zeno", "--trim", 1]
    assert run(monkeypatch, "train", *flags, "--rho", 1, "--out", tmp_path / "out") == 0
    says = "note: rho=1 is not below the smallest learning rate, 0.1: zeros may score higher than the true gradient. "
    assert capsys.readouterr().err.count(says) == 1
    assert run(monkeypatch, "train", *flags, "--rho", 0.01, "--out", tmp_path / "other") == 0
    assert "rho" not in capsys.readouterr().err


def test_a_warning_of_other_code_keeps_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="by the user") as found, warnings_as_notes():
        warnings.warn("by the user", stacklevel=1)
    assert found[0].filename == __file__
    assert capsys.readouterr().err == ""


def test_skipped_steps_are_counted_below_the_table_with_the_last_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = [*SMALL, "--fault", "crash", "--faulty", 2]
    assert run(monkeypatch, "train", *flags, "--rule", "zeno(trim=1)", "--out", tmp_path / "run") == 0
    says = "4 of 4 steps were skipped. The last: Zeno(trim=1, rho=0.0005, batch_size=4, score='exact') needs 4 usable"
    assert f"\n{says}" in capsys.readouterr().out
    assert run(monkeypatch, "suspects", tmp_path / "run") == 0
    assert f"\n{says}" in capsys.readouterr().out
    rules = ["--rule", "zeno(trim=1)", "--rule", "mean"]
    assert run(monkeypatch, "compare", *flags, *rules, "--out", tmp_path / "compare") == 0
    shown = capsys.readouterr().out
    assert "\nzeno(trim=1, batch_size=64): 4 of 4 steps were skipped. The last: Zeno(" in shown
    assert shown.count("were skipped") == 1, "steps of the others were not"


def test_faults_that_change_the_time_of_a_reply_in_a_simulation_only_are_noted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def no_cluster(address: str | None) -> None:
        raise ValueError("Could not start or join a Ray cluster")

    monkeypatch.setattr(session, "start_or_join", no_cluster)
    flags = ["--faulty", 3, "--fault", "slow(3)+zero+flood", "--cluster", "ray", "--out", tmp_path / "out"]
    for asynchronous, expected in ((["--asynchronous"], ["slow(steps=3)", "flood"]), ([], [])):
        assert run(monkeypatch, "train", *SMALL, *flags, *asynchronous) == 2
        *notes, _ = capsys.readouterr().err.splitlines()
        text = "note: a Ray cluster has real delays, so {} does not change the time of a reply"
        assert notes == [text.format(fault) for fault in expected]


SLOW = "import time\nprint('importing', flush=True)\ntime.sleep(60)\n"
# As torch and numpy can, whose compiled parts ignore or replace an exception.
DEAF = """
import time
print('importing', flush=True)
try:
    time.sleep(60)
except BaseException:
    raise ImportError("cannot load module more than once per process") from None
"""


@pytest.mark.parametrize(("package", "text"), [("typer", SLOW), ("torch", SLOW), ("torch", DEAF)])
def test_ctrl_c_while_packages_are_imported_ends_with_one_line(package: str, text: str, tmp_path: Path) -> None:
    (tmp_path / f"{package}.py").write_text(text)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-m", "zeno", "train", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "interrupted\n")


@pytest.mark.parametrize(("name", "folder"), [("train", "out"), ("compare", "out/mean-without-faults")])
def test_ctrl_c_leaves_a_run_that_can_be_read(name: str, folder: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "zeno", name]
    arguments = ["--workers", "3", "--faulty", "1", "--rule", "mean", "--steps", "1000000"]
    arguments += ["--out", str(tmp_path / "out")]
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    records = tmp_path / folder / "records.jsonl"
    deadline = time.monotonic() + 120
    while not (records.exists() and records.read_text().count("\n") > 30):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    shown, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert f"interrupted: the records up to here, and the model, are kept; to continue: zeno {name} --resume" in errors
    assert "Traceback" not in errors
    assert "mean" in shown
    assert len(read(tmp_path / folder)) > 30
    assert (tmp_path / folder / MODEL_FILE).exists()
    assert (tmp_path / "out" / "curves.png").exists()
