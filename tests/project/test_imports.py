"""Imports point one way, so that each package can be read without the later ones."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent / "src" / "zeno"
ORDER = ["problem", "rules", "workers", "faults", "records", "server", "flower", "report", "training", "studies", "cli"]
ONLY_IN = {
    "ray": "workers/ray",
    "flwr": "flower",
    "matplotlib": "report",
    "tensorboard": "report",
    "prometheus_client": "report",
}


def imported_by(file: Path) -> set[str]:
    """The modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_a_package_imports_only_earlier_ones() -> None:
    for i, package in enumerate(ORDER):
        later = ORDER[i + 1 :]
        for file in (ROOT / package).rglob("*.py"):
            names = [name.split(".") for name in imported_by(file)]
            found = sorted(name[1] for name in names if name[0] == "zeno" and name[1:] and name[1] in later)
            assert not found, f"{file.relative_to(ROOT)} imports {', '.join(found)}"


def test_every_module_belongs_to_a_package() -> None:
    assert {path.name for path in ROOT.iterdir() if path.is_dir()} - {"__pycache__"} == set(ORDER)
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py", "_public.py"}


def test_ray_and_plotting_libraries_have_their_packages() -> None:
    for library, package in ONLY_IN.items():
        files = [path for path in ROOT.rglob("*.py") if library in {name.split(".")[0] for name in imported_by(path)}]
        assert all(file.is_relative_to(ROOT / package) for file in files), f"{library} is imported by {files}"


def test_ray_and_matplotlib_are_imported_only_when_they_are_needed() -> None:
    code = "import sys, zeno, zeno.cli, zeno.workers.ray; zeno.Run; assert not {'ray', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_misspelt_names_get_a_suggestion_and_private_names_are_not_listed() -> None:
    code = "import zeno; zeno.Zenoauto"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "module 'zeno' has no attribute 'Zenoauto'" in done.stderr
    assert "Did you mean: 'ZenoAuto'?" in done.stderr
    package = importlib.import_module("zeno")
    assert [name for name in dir(package) if name.startswith("_")] == ["__version__"]


def test_the_addresses_of_the_project_are_those_of_the_readme() -> None:
    text = (ROOT.parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    (urls,) = re.findall(r"\[project\.urls\]\n((?:.+\n)+)", text)
    readme = (ROOT.parent.parent / "README.md").read_text(encoding="utf-8")
    found = re.findall(r'= "(.*)"', urls)
    assert found
    assert all(address in readme for address in found)


def test_every_public_name_is_there() -> None:
    package = importlib.import_module("zeno")
    assert {"Run", "Server", "Zeno", "distributed", "load_task", "train"} <= set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        assert vars(package)[name] is getattr(package, name)
