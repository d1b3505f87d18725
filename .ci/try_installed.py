"""Tries an installed zeno-sgd: `python .ci/try_installed.py ROOT [base, or an extra]`, in a folder outside of ROOT."""

import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import distribution
from pathlib import Path

COMMANDS = {
    "base": [
        "train --steps 20 --out run",
        "suspects run",
        "report run --out run.html",
        "compare --steps 5 --rule mean --rule zeno_auto --out both",
        "rules",
        "faults",
        "tasks",
    ],
    "ray": ["train --cluster ray --workers 4 --steps 5"],
    "tensorboard": ["train --tensorboard --steps 5 --out board"],
    "prometheus": ["train --metrics-port 0 --steps 5"],
    "flower": [],
}
CODE = {"flower": "from zeno.flower import ZenoStrategy"}
NEEDED = ("ray", "tensorboard", "prometheus")


def zeno(arguments: str, status: int = 0) -> str:
    """What a command prints, in the environment of this interpreter."""
    program = Path(sys.executable).with_name("zeno")
    done = subprocess.run([program, *arguments.split()], capture_output=True, text=True, timeout=600)
    if done.returncode != status:
        raise SystemExit(f"zeno {arguments} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def main(root: Path, extra: str = "base") -> None:
    import zeno as package

    if Path(package.__file__).is_relative_to(root):
        raise SystemExit(f"Found {package.__file__}. Run this where zeno-sgd is installed, outside of the source tree.")
    version = re.search(r'^version = "(.*)"', (root / "pyproject.toml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert version
    assert zeno("--version").strip() == version[1]
    files = {str(file) for file in distribution("zeno-sgd").files or []}
    assert "zeno/py.typed" in files
    assert any(name.endswith("licenses/LICENSE") for name in files)
    assert not any(name.startswith(("tests", "benchmarks", "docs")) for name in files)
    for command in COMMANDS[extra]:
        zeno(command)
        print(f"zeno {command}: works")
    if extra == "base":
        readme = (root / "README.md").read_text(encoding="utf-8")
        for code in re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL):
            exec(code, {"__name__": "readme"})
        [diff] = re.findall(r"```diff\n(.*?)```", readme, flags=re.DOTALL)
        exec("\n".join(line[1:] for line in diff.splitlines() if not line.startswith("-")), {})
        for name in NEEDED:  # without its extra, a command says what to install
            said = zeno(COMMANDS[name][0], status=2)
            assert f"zeno-sgd[{name}]" in said, said
        print("README.md: works")
    if extra in CODE:
        exec(CODE[extra])
        print(f"{CODE[extra]}: works")
    print(f"{extra}: zeno-sgd {version[1]} works on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    root, *extra = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main(Path(root).resolve(), *extra)
