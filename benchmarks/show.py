"""Runs the benchmarks; prints tables and writes JSON."""

import json
import math
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import asynchronous, cluster, cost, distributed, guard, rules, steps
from benchmarks.cost import GRADIENT, Cost
from benchmarks.peers import PACKAGES, missing
from benchmarks.rules import Timing

COST_OF = ("cnn", "small_cnn")
GROWTH = [(10, 10**5), (20, 10**5), (50, 10**5), (100, 10**5), (200, 10**5), (10, 10**6), (10, 10**7), (10, 10**8)]
PARTS = ("rules", "growth", "steps", "cost", "zeno_auto", "cluster", "asynchronous", "distributed", "guard", "nan")
ON_RAY = ("cluster", "asynchronous")
MODULES: dict[str, Any] = {
    "steps": steps,
    "cluster": cluster,
    "asynchronous": asynchronous,
    "distributed": distributed,
    "guard": guard,
}


def run(what: str, sizes: Sequence[int], threads: int, json_file: Path | None, console: Console) -> None:
    """Runs one benchmark, or all; prints each result when it is there, and writes the JSON file after each part."""
    if what not in (*PARTS, "all"):
        raise ValueError(f"There is no benchmark {what!r}. There are: {', '.join(PARTS)}, all.")
    if min(sizes) < 1 or threads < 1:
        raise ValueError(f"A benchmark needs sizes and threads of at least 1. Found {list(sizes)} and {threads}.")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    found: dict[str, Any] = {"machine": _machine(threads)}
    try:
        for part in PARTS:
            if part in ON_RAY and what == "all" and find_spec("ray") is None:
                _say(f"{part} is left out: Ray is not installed")
            elif what in (part, "all"):
                found[part] = _measure(part, sizes, console)
                if json_file is not None:  # also when the next part is interrupted
                    json_file.parent.mkdir(parents=True, exist_ok=True)
                    json_file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    finally:
        torch.set_num_threads(before)


def _measure(part: str, sizes: Sequence[int], console: Console) -> Any:
    if part in ("rules", "nan"):
        for package, reason in missing().items():
            _say(f"{package} is left out: {reason}")
    if part == "rules":
        rules.make_kernels(_say)
        timings = rules.table(sizes, _say_timing)
        for size in sizes:
            console.print(_rules_table([t for t in timings if t.parameters == size], size))
        return [_as_json(t) for t in timings]
    if part == "growth":
        timings = rules.growth(GROWTH, _say_timing)
        console.print(_growth_table(timings))
        return [_as_json(t) for t in timings]
    if part == "cost":
        rules.make_kernels(_say, rules.KERNELS[:2])  # of the mean and the median
        costs = []
        for model in COST_OF:
            _say(f"measuring {model}: a minute or two")
            costs.append(cost.measure(model))
            console.print(_cost_table(costs[-1]), *_cost_lines(costs[-1]), sep="\n", highlight=False)
        return [one.to_json() for one in costs]
    if part == "zeno_auto":
        ratios = cost.zeno_auto_by_workers()
        console.print(f"zeno_auto, in units of {GRADIENT} of 100 samples, by workers: {_short(dict(ratios))}")
        return ratios
    if part in MODULES:
        return MODULES[part].everything(lambda name, numbers: console.print(f"{name}: {_short(numbers)}"))
    rows = {label: rules.one_bad_worker_of_seven(value) for label, value in (("NaN", math.nan), ("Inf", math.inf))}
    for label, table in rows.items():
        console.print(_bad_row_table(label, table))
    return rows


def _rules_table(timings: Sequence[Timing], size: int) -> Table:
    table = Table(title=f"20 workers, {size:,} parameters; milliseconds, best of several turns")
    for heading in ("rule", "zeno", "without kernel", "x limit", *PACKAGES, "x fastest that agrees"):
        table.add_column(heading, justify="left" if heading == "rule" else "right")
    for t in timings:
        peers = [f"{t.peers[p]:.0f}{'*' if p in t.differs else ''}" if p in t.peers else "" for p in PACKAGES]
        eager = "" if t.eager_milliseconds is None else f"{t.eager_milliseconds:.1f}"
        speedup = "" if t.speedup is None else f"{t.speedup:.1f}"
        table.add_row(t.rule, f"{t.milliseconds:.1f}", eager, f"{t.over_limit:.1f}", *peers, speedup)
    notes = sorted({f"{p} {t.rule}: {note}" for t in timings for p, note in t.differs.items()})
    largest = max((d for t in timings for d in t.disagreement.values()), default=0.0)
    limit = min(t.limit_milliseconds for t in timings)
    table.caption = (
        f"limit: {limit:.1f} ms. Peers agree with zeno to {largest:.0e}, but for *: {'; '.join(notes) or 'none'}"
    )
    return table


def _growth_table(timings: Sequence[Timing]) -> Table:
    sizes = list(dict.fromkeys((t.workers, t.parameters) for t in timings))
    table = Table("rule", *[f"m={m} d={d:.0e}" for m, d in sizes], title="milliseconds, a fifth of the workers faulty")
    by = {(t.rule, (t.workers, t.parameters)): f"{t.milliseconds:.1f}" for t in timings}
    for rule in dict.fromkeys(t.rule for t in timings):
        table.add_row(rule, *[by.get((rule, size), "") for size in sizes])
    return table


def _cost_table(cost: Cost) -> Table:
    title = f"{cost.model}: {cost.workers} workers, {cost.parameters:,} parameters; milliseconds, best of several turns"
    table = Table(title=title)
    for heading in ("what", "ours", "x median", "x krum", "x gradient", "plain torch", "x median", "x krum"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for name, ms in cost.ours.items():
        numbers = [ms, *(ms / cost.ours[other] for other in ("median", "krum", GRADIENT))]
        if name in cost.plain:
            plain = cost.plain[name]
            numbers += [plain, plain / cost.plain["median"], plain / cost.plain["krum"]]
        table.add_row(name, *[f"{number:,.0f}" if number >= 100 else f"{number:.2g}" for number in numbers])
    return table


def _cost_lines(cost: Cost) -> list[str]:
    times = cost.multiplications / cost.parameters
    return [
        *(f"{claim.text}: {claim.verdicts()}" for claim in cost.claims()),
        f"A forward of one sample takes {cost.multiplications:,} multiplications, {times:.0f} x d; the paper says d.",
        "Running statistics are for BatchNorm, with any rule.",
    ]


def _bad_row_table(label: str, rows: Sequence[dict[str, str]]) -> Table:
    table = Table("rule", "zeno", *PACKAGES, title=f"one worker of seven sends {label}")
    for row in rows:
        table.add_row(row["rule"], row["zeno"], *[row.get(package, "") for package in PACKAGES])
    return table


def _as_json(timing: Timing) -> dict[str, Any]:
    return {**asdict(timing), "over_limit": timing.over_limit, "speedup": timing.speedup}


def _machine(threads: int) -> dict[str, Any]:
    def installed(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    return {
        "processor": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ray": installed("ray"),
        "threads": threads,
        "peers": {package: installed(package) for package in PACKAGES},
    }


def _short(numbers: dict[str, Any]) -> str:
    return ", ".join(f"{k.replace('_', ' ')} {v:.3g}" if type(v) is float else f"{k} {v}" for k, v in numbers.items())


def _say(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)


def _say_timing(timing: Timing) -> None:
    print(f"{timing.rule}, {timing.workers} x {timing.parameters}: {timing.milliseconds:.1f} ms", file=sys.stderr)
