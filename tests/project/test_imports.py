"""Imports point one way, so that each part can be read without the ones above it."""

import ast
import subprocess
import sys
from pathlib import Path

import zeno

ROOT = Path(zeno.__file__).parent
MAY_IMPORT = {
    "bench": {
        "cluster",
        "data",
        "distributed",
        "engine",
        "faults",
        "models",
        "problem",
        "rules",
        "scoring",
        "server",
        "step",
        "tasks",
        "worker",
    },
    "rules": set(),
    "data": set(),
    "records": set(),
    "reply": set(),
    "spec": set(),
    "models": set(),
    "checkpoint": set(),
    "cores": set(),
    "problem": {"cores", "data"},
    "faults": {"data", "reply"},
    "download": {"spec"},
    "tasks": {"data", "models", "problem", "spec"},
    "momentum": {"rules"},
    "worker": {"data", "faults", "problem"},
    "cluster": {"cores", "data", "faults", "momentum", "problem", "reply", "worker"},
    "scoring": {"problem"},
    "stop": set(),
    "processes": {"stop"},
    "outcomes": set(),
    "step": {"problem", "records", "reply", "rules", "scoring"},
    "engine": {"cluster", "cores", "data", "problem", "rules", "scoring", "step"},
    "vectors": set(),
    "samples": {"data"},
    "sent": {"rules", "step"},
    "refusals": {"problem", "vectors"},
    "logbook": {"ledger", "records", "rules", "spec"},
    "server": {
        "data",
        "ledger",
        "logbook",
        "problem",
        "records",
        "refusals",
        "rules",
        "samples",
        "sent",
        "step",
        "vectors",
    },
    "distributed": {"problem", "rules", "server", "vectors"},
    "run": {"data", "faults", "problem", "rules", "spec", "tasks"},
    "setup": {"run"},
    "train": {
        "checkpoint",
        "cluster",
        "data",
        "engine",
        "ledger",
        "problem",
        "records",
        "rules",
        "run",
        "scoring",
        "setup",
        "step",
        "stop",
        "tasks",
        "telemetry",
        "worker",
    },
    "compare": {"rules", "run", "spec"},
    "matrix": {
        "compare",
        "cores",
        "faults",
        "outcomes",
        "processes",
        "records",
        "rules",
        "run",
        "spec",
        "stop",
        "tasks",
        "train",
    },
    "ledger": {"records", "reply"},
    "worker_map": {"records"},
    "telemetry": {"ledger", "records", "worker_map"},
    "page": {"ledger", "records"},
    "report": {"ledger", "matrix", "records", "worker_map"},
    "experiments": {
        "cores",
        "data",
        "faults",
        "outcomes",
        "problem",
        "processes",
        "records",
        "report",
        "rules",
        "run",
        "setup",
        "spec",
        "stop",
        "tasks",
        "train",
    },
    "theory": set(),
}


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module == "zeno":
            names = [f"zeno.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("zeno.")}
    return found


def test_every_part_imports_only_what_lies_below_it() -> None:
    parts = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in ROOT.rglob("*.py")}
    assert parts - {"__init__", "cli"} == set(MAY_IMPORT)
    for part, allowed in MAY_IMPORT.items():
        files = [ROOT / f"{part}.py"] if (ROOT / f"{part}.py").exists() else list((ROOT / part).rglob("*.py"))
        found = set().union(*(imports_of(file) for file in files)) - {part}
        assert found <= allowed, f"{part} imports {sorted(found - allowed)}"


def test_only_the_ray_cluster_imports_ray_and_only_when_it_is_asked_for() -> None:
    users = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "ray" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ray")
    }
    assert users == {"cluster/ray/session.py"}
    code = "import sys, zeno, zeno.cli, zeno.cluster.ray; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there() -> None:
    for name in zeno.__all__:
        assert hasattr(zeno, name)
