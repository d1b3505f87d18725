"""Every example runs in its small form, in a separate process, and reproduces the result in its docstring."""

import ast
import difflib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import zeno
from zeno.cli.app import app as zeno_app

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SOURCE = Path(zeno.__file__).parent.parent
ALONE = {  # on one core, and on the loopback address
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
    "PYTHONPATH": str(SOURCE),
    "PYTHONWARNINGS": "error::UserWarning:zeno",
}
# torchrun, except that it listens on loopback only: its store listens on all addresses, whatever its options are.
TORCHRUN = """
import functools, socket, sys
from torch.distributed import TCPStore, run
from torch.distributed.elastic.rendezvous import static_tcp_rendezvous as static

class OnLoopback(static.StaticTCPRendezvous):
    def next_rendezvous(self):  # also after a restart, which needs a new store
        listener = socket.create_server(("127.0.0.1", 0))
        self.master_port, self._store = listener.getsockname()[1], None
        static.TCPStore = functools.partial(TCPStore, master_listen_fd=listener.detach())
        return super().next_rendezvous()

static.StaticTCPRendezvous = OnLoopback
run.main(["--master-addr", "127.0.0.1", "--master-port", "0", *sys.argv[1:]])
"""


def done_by(*command: str | Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, *map(str, command)]
    return subprocess.run(words, env=os.environ | ALONE, cwd=folder, capture_output=True, text=True, timeout=240)


def printed_by(*command: str | Path, folder: Path | None = None) -> str:
    done = done_by(*command, folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def example(name: str, *arguments: str | Path) -> str:
    return printed_by(EXAMPLES / name, "--small", *arguments)


def numbers(pattern: str, text: str) -> list[float]:
    """The numbers that the groups of the pattern match; percentages become fractions."""
    found = re.search(pattern, text)
    assert found, f"{pattern!r} is not in:\n{text}"
    return [float(part.rstrip("%")) / (100 if part.endswith("%") else 1) for part in found.groups()]


def suspects_in(text: str) -> list[int]:
    named = re.search(r"suspect: ([\d, and]+)\.", text)
    return [int(worker) for worker in re.findall(r"\d+", named[1])] if named else []


def test_own_loop_survives_faults_that_ruin_the_plain_loop_and_names_the_faulty_workers(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    text = example("own_loop.py", "--folder", folder)
    without, with_zeno = numbers(r"accuracy without Zeno (\S+%), with Zeno (\S+%)", text)
    assert without < 0.2
    assert with_zeno > 0.85
    assert suspects_in(text) == list(range(12))
    steps = (folder / "records.jsonl").read_text(encoding="utf-8").count("\n")
    assert f"step {steps}: " in text, "the folder must have a record of every step"


def test_own_loop_changes_by_few_lines() -> None:
    lines = (EXAMPLES / "own_loop.py").read_text(encoding="utf-8").splitlines()
    added = [line for line in lines if line.endswith("  # +")]
    assert any("server.step(" in line for line in added)
    assert len(added) <= 10
    using_zeno = [line for line in lines if re.search(r"\bzeno\.Server|\bserver\.|import zeno", line)]
    assert set(using_zeno) <= set(added), "every line that needs the server must be marked"


def test_torchrun_survives_a_bad_gpu_and_names_it() -> None:
    text = printed_by("-c", TORCHRUN, "--nproc-per-node", "3", EXAMPLES / "torchrun.py", "--small")
    assert numbers(r"step 120: accuracy (\S+%)", text)[0] > 0.8
    assert suspects_in(text) == [2]


def test_torchrun_changes_by_few_lines() -> None:
    lines = (EXAMPLES / "torchrun.py").read_text(encoding="utf-8").splitlines()
    added = [line for line in lines if line.endswith("  # +")]
    assert 4 <= len(added) <= 10
    using_zeno = [line for line in lines if re.search(r"zeno\.distributed\.Guard\(|\bguard\b[^e]", line)]
    assert {line for line in using_zeno if not line.lstrip().startswith(('"""', "if"))} <= set(added)


def test_torchrun_continues_after_a_rank_died(tmp_path: Path) -> None:
    options = ["--small", "--checkpoint", str(tmp_path / "state.pt"), "--dies", "70"]
    restarting = ["--nproc-per-node", "3", "--max-restarts", "1"]
    text = printed_by("-c", TORCHRUN, *restarting, EXAMPLES / "torchrun.py", *options)
    assert "continues after 50 steps" in text
    assert numbers(r"step 120: accuracy (\S+%)", text)[0] > 0.8
    assert suspects_in(text) == [2]


@pytest.mark.slow
def test_torchrun_with_ddp_is_ruined_by_a_bad_gpu() -> None:
    text = printed_by("-c", TORCHRUN, "--nproc-per-node", "2", EXAMPLES / "torchrun.py", "--small", "--ddp")
    assert numbers(r"step 120: accuracy (\S+%)", text)[0] < 0.3


def test_transformer_learns_from_the_one_good_worker_of_20() -> None:
    text = example("transformer.py")
    good, with_zeno, mean = numbers(r"loss: good worker alone (\S+), Zeno (\S+), mean (\S+)\n", text)
    assert good < 3.3, "guessing uniformly has 4.29"
    assert with_zeno < good + 0.2
    assert mean > with_zeno + 2


def test_hugging_face_learns_with_3_of_8_faulty_and_names_them() -> None:
    text = example("hugging_face.py")
    mean, with_zeno = numbers(r"accuracy: mean (\S+%), Zeno (\S+%)", text)
    assert mean < 0.3, "worse than guessing"
    assert with_zeno > 0.85
    assert suspects_in(text) == [0, 1, 2]


def test_regression_survives_wrong_units() -> None:
    text = example("regression.py")
    good, with_zeno, mean = numbers(r"error: good ones (\S+), Zeno (\S+), mean (\S+) mmol/l", text)
    assert with_zeno < good + 0.2 < 1
    assert mean > 10
    assert set(suspects_in(text)) <= {*range(7), 11}, "no good hospital must be named, but for one that often fails"


def test_custom_rule_works_in_a_run_and_in_a_loop() -> None:
    text = example("custom_rule.py")
    assert "there is no update: DescentWeighted(samples=32) needs 1 usable candidates. Found 0 of 20." in text
    assert numbers(r"train with Median\S*: accuracy (\S+%)", text)[0] < 0.2
    assert numbers(r"train with DescentWeighted\S*: accuracy (\S+%)", text)[0] > 0.7
    assert numbers(r"Server with DescentWeighted\S*: accuracy (\S+%)", text)[0] > 0.9


def test_custom_fault_ruins_the_median_and_combines_with_others() -> None:
    text = example("custom_fault.py")
    for fault in ("off by one", r"off by one \+ sign flip"):
        assert numbers(rf"{fault}, Median: accuracy (\S+%)", text)[0] < 0.4
        assert numbers(rf"{fault}, Zeno: accuracy (\S+%)", text)[0] > 0.75


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Flower requires Python 3.11")
def test_flower_app_learns_with_6_of_10_malicious_clients_and_ends_with_fedavg(tmp_path: Path) -> None:
    app = ["-m", "federated.in_process", "--task", "digits", "--rounds", "20"]
    text = printed_by(*app, "--folder", tmp_path / "run", folder=EXAMPLES / "flower")
    assert numbers(r"accuracy (\S+%)", text)[0] > 0.85
    said = CliRunner().invoke(zeno_app, ["suspects", str(tmp_path / "run"), "--json"])
    named = set(json.loads(said.output)[0]["suspect_names"])
    assert {"1002", "1003"} <= named, "NaN and other keys: they always fail"
    assert named <= {str(node) for node in range(1000, 1006)}, "no good client must be named"
    failed = done_by(*app, "--fedavg", folder=EXAMPLES / "flower")
    assert failed.returncode != 0
    assert "InconsistentMessageReplies" in failed.stderr


def test_flower_app_with_fedavg_differs_by_three_lines() -> None:
    ours, fedavg = (
        (EXAMPLES / "flower" / "federated" / f"{name}.py").read_text(encoding="utf-8").splitlines()
        for name in ("server_app", "server_fedavg")
    )
    changes = list(difflib.ndiff(fedavg, ours))
    added = [line[2:].strip() for line in changes if line.startswith("+ ")]
    assert [line.split()[0] for line in added] == ["from", "own,", "strategy"]
    assert len([line for line in changes if line.startswith("- ")]) == 2


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_states_how_to_run_it_and_its_result(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert f"examples/{path.name}" in text
    assert re.search(r"^(Output|What comes out) \(", text, flags=re.MULTILINE)
    assert path.name in Path(__file__).read_text(encoding="utf-8"), "every example needs a test"
