"""What strategies of Flower and ZenoStrategy reach on the app in examples/flower, with malicious clients.

    PYTHONPATH=examples/flower python -m benchmarks.flower [--task mnist] [--data FOLDER] [--seed 0] [--json FILE]

Ten clients in this process, with a Dirichlet(0.3) split; 0, 2, 4 or 6 of them are malicious. Flower's strategies are
told how many, as far as they allow. Prints the test accuracy after the rounds, and the seconds of the processor that
the strategy itself takes per round. Each result is added to the JSON lines of the file when it is there; those that it
has are not measured again.
"""

import argparse
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Bulyan, FedAvg, FedMedian, FedTrimmedAvg, Krum, MultiKrum, Strategy

import zeno
from federated.in_process import CLIENTS, MALICIOUS, Config, InProcess, client, faults, run_config
from federated.task import Settings, evaluation, local_training, loss, new_model, own_samples, which_nodes
from zeno.flower import ZenoStrategy

NUMBERS = (2, 4, 6)  # of malicious clients
MOST_TRIMMED, MOST_OF_BULYAN = 4, 1  # of 10 clients: less than half on each side; Bulyan needs 4 * 1 + 3 replies
STRATEGIES: dict[str, Callable[[Settings, int], Strategy]] = {
    "FedAvg": lambda settings, bad: FedAvg(**which_nodes(settings)),
    "FedMedian": lambda settings, bad: FedMedian(**which_nodes(settings)),
    "FedTrimmedAvg": lambda settings, bad: FedTrimmedAvg(
        **which_nodes(settings), beta=min(bad, MOST_TRIMMED) / CLIENTS
    ),
    "Krum": lambda settings, bad: Krum(**which_nodes(settings), num_malicious_nodes=bad),
    "MultiKrum": lambda settings, bad: MultiKrum(
        **which_nodes(settings), num_malicious_nodes=bad, num_nodes_to_select=CLIENTS - bad
    ),
    "Bulyan": lambda settings, bad: Bulyan(**which_nodes(settings), num_malicious_nodes=min(bad, MOST_OF_BULYAN)),
    "ZenoStrategy": lambda settings, bad: of_zeno(settings, None),
}
GOOD, SERVER = "good clients alone", "server alone"  # the controls
Cell = tuple[str, int, str]  # strategy, number of malicious clients, kind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="mnist")
    parser.add_argument("--data", default="")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=Path("runs/flower.jsonl"))
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    changed = {"task": options.task, "data": options.data, "seed": options.seed, "num-server-rounds": options.rounds}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    done = {tuple(one["cell"]): one for one in _read(options.json)}
    for cell in cells():
        if cell not in done:
            done[cell] = {"cell": cell, **measure(cell, run_config(**changed))}
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done[cell]) + "\n")
            print(*cell, shown(done[cell]), sep=", ", flush=True)
    print(table(done))


def cells() -> Iterator[Cell]:
    yield SERVER, 0, ""
    for bad in (0, *NUMBERS):
        yield GOOD, bad, ""
    for strategy in sorted(STRATEGIES, key=lambda name: name == "Bulyan"):  # the slowest of them is the last
        yield strategy, 0, ""
        yield from ((strategy, bad, kind) for kind in MALICIOUS for bad in NUMBERS)


def measure(cell: Cell, config: Config) -> dict[str, Any]:
    """Trains, and says how well; or which exception ended the run, and in which round."""
    name, bad, kind = cell
    of_clients = faults(bad, [kind])
    leave_out = bad if name == GOOD else 0
    clients = {k: client(k, CLIENTS, fault, config) for k, fault in enumerate(of_clients) if k >= leave_out}
    settings = Settings.of({**config, "min-nodes": len(clients)})
    if name in (SERVER, GOOD):
        strategy = of_zeno(settings, zeno.ServerAlone()) if name == SERVER else STRATEGIES["FedAvg"](settings, 0)
    else:
        strategy = STRATEGIES[name](settings, bad)
    clock, arrays = Clock(strategy), ArrayRecord(new_model(settings).state_dict())
    try:
        result = strategy.start(InProcess(clients), arrays, num_rounds=settings.rounds)
    except Exception as error:
        return {"ended": clock.rounds, "error": type(error).__name__, "seconds": clock.seconds}
    found = evaluation(settings)(settings.rounds, result.arrays if len(result.arrays) else arrays)
    return {"accuracy": found["accuracy"], "seconds": clock.seconds}


def of_zeno(settings: Settings, rule: zeno.Rule | None) -> ZenoStrategy:
    own, training = own_samples(settings), local_training(settings)
    return ZenoStrategy(new_model(settings), loss, own, rule=rule, **training, **which_nodes(settings))


class Clock:
    """The processor's seconds in `aggregate_train` of a strategy, per round."""

    def __init__(self, strategy: Strategy) -> None:
        self.rounds, self._total, self._aggregate = 0, 0.0, strategy.aggregate_train
        strategy.__dict__["aggregate_train"] = self._timed

    def _timed(self, *arguments: Any) -> Any:
        start = time.process_time()
        self.rounds += 1
        try:
            return self._aggregate(*arguments)
        finally:
            self._total += time.process_time() - start

    @property
    def seconds(self) -> float:
        return self._total / max(self.rounds, 1)


def table(done: dict[Cell, dict[str, Any]]) -> str:
    """The results as a table in Markdown; each cell has those for 2, 4 and 6 malicious clients."""
    lines = [f"| | none | {' | '.join(MALICIOUS)} | seconds per round |", "|---" * (len(MALICIOUS) + 3) + "|"]
    for name in (*STRATEGIES, GOOD, SERVER):
        control = name in (GOOD, SERVER)
        cells = [
            [done[name, 0 if name == SERVER else bad, "" if control else kind] for bad in NUMBERS] for kind in MALICIOUS
        ]
        texts = [list(map(shown, found)) for found in cells]
        columns = [" / ".join(text if len(set(text)) > 1 else text[:1]) for text in texts]
        none = done[name, 0, ""]
        seconds = "" if control else f"{none['seconds']:.3f}"
        lines.append(f"| {name} | {shown(none)} | {' | '.join(columns)} | {seconds} |")
    return "\n".join(lines)


def shown(found: dict[str, Any]) -> str:
    return f"{100 * found['accuracy']:.1f}" if "accuracy" in found else f"{found['error']} in round {found['ended']}"


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
