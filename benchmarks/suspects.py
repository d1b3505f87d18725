"""Whom the ledger names, in real runs with ZenoAuto: the tables of docs/suspects.md.

    python -m benchmarks.suspects healthy faults failing [--task mnist] [--data FOLDER] [--seeds 2] [--out FILE]

`healthy` trains without faults, with 4 to 100 workers: nobody should be named. `faults` has every fault on 1 and on 7
of 8 workers, and three different ones on 3. In `failing`, one of 4 to 20 workers crashes, sends NaN or does not reply
at one step in ten. Each run is appended to the file as a JSON line when it ends, and is not trained again.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import zeno
from zeno.faults import FAULTS
from zeno.training.settings import make_fault

STEPS = 200
FIRST_SEED = 600  # nothing was chosen on these
THREE_KINDS = (
    ("label_flip", "sign_flip", "crash"),
    ("gaussian", "inner_product", "label_noise"),
    ("bit_flip", "non_finite", "huge"),
    ("omniscient", "random_bits", "label_flip"),
)


@dataclass(frozen=True)
class Case:
    """One run, and how many workers are faulty in it; they come first."""

    part: str
    task: str
    split: str
    workers: int
    fault: str  # as on the command line; empty: none
    faulty: int
    seed: int

    def run(self, data: str | None) -> zeno.Run:
        plain = zeno.Run(
            task=self.task,
            data=data,
            workers=self.workers,
            split=self.split,
            rule=zeno.ZenoAuto(),
            steps=STEPS,
            eval_every=STEPS,
            seed=self.seed,
        )
        if not self.faulty:
            return plain
        return replace(plain, fault=make_fault(self.fault), faulty=self.faulty)


def healthy(task: str, seeds: range) -> Iterator[Case]:
    for seed, split, workers in product(seeds, ("iid", "disjoint", "dirichlet(0.1)", "by_label"), (4, 8, 20, 100)):
        yield Case("healthy", task, split, workers, "", 0, seed)


def faults(task: str, seeds: range) -> Iterator[Case]:
    for seed, split in product(seeds, ("iid", "dirichlet(0.3)")):
        for fault, faulty in product(FAULTS, (1, 7)):
            yield Case("faults", task, split, 8, fault, faulty, seed)
        for kinds in THREE_KINDS:
            yield Case("faults", task, split, 8, "+".join(f"{kind}(on=1)" for kind in kinds), 3, seed)


def failing(task: str, seeds: range) -> Iterator[Case]:
    for seed, workers, fault in product(seeds, (4, 8, 20), ("crash", "non_finite", "hang")):
        yield Case("failing", task, "iid", workers, f"{fault}(chance=0.1)", 1, seed)


Named = dict[Case, dict[str, int]]  # the step at which each worker was named first, by its number
PARTS = {"healthy": healthy, "faults": faults, "failing": failing}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="+", choices=PARTS)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--data")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/suspects.jsonl"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    found = read(options.out)
    for part in options.part:
        for case in PARTS[part](options.task, range(FIRST_SEED, FIRST_SEED + options.seeds)):
            if case not in found:
                found[case] = named(case, options.data)
                with options.out.open("a", encoding="utf-8") as file:
                    print(json.dumps(vars(case) | {"named": found[case]}), file=file)
    show(found)


def read(path: Path) -> Named:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    values: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return {Case(**{name: one for name, one in line.items() if name != "named"}): line["named"] for line in values}


def named(case: Case, data: str | None) -> dict[str, int]:
    steps: dict[str, int] = {}

    def add(row: zeno.Row) -> None:
        assert row.since is not None  # it is suspect
        steps.setdefault(row.name, row.since)

    zeno.train(case.run(data), on_suspect=add)
    return steps


def show(found: Named) -> None:
    """One line for each kind of case: how many faulty workers were named, at which step, and how many good ones."""
    kinds: dict[tuple[Any, ...], list[tuple[Case, dict[str, int]]]] = defaultdict(list)
    for case, steps in found.items():
        kinds[case.part, case.task, case.split, case.workers, case.fault, case.faulty].append((case, steps))
    for (part, task, split, workers, fault, faulty), runs in kinds.items():
        bad = [step for case, steps in runs for who, step in steps.items() if int(who) < case.faulty]
        good = sum(any(int(who) >= case.faulty for who in steps) for case, steps in runs)
        when = f" (median step {median(bad):.0f}, last {max(bad)})" if bad else ""
        named_bad = f"{len(bad)} of {faulty * len(runs)} named{when}; " if faulty else ""
        print(
            f"{part}, {task}, {split}, {faulty} of {workers} {fault}: {named_bad}"
            f"a good worker named in {good} of {len(runs)} runs"
        )


if __name__ == "__main__":
    main()
