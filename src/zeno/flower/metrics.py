"""The numbers of a round as a record of metrics: of training, and what clients say about their evaluation."""

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from statistics import median

from flwr.app import MetricRecord, RecordDict

from zeno.records.record import Record

MOST_METRICS = 100  # of a client that are read
CLAIMED_WEIGHT = "num-examples"  # FedAvg's weight of a client, by its own account


def of_training(record: Record, names: list[str]) -> MetricRecord:
    """How many replies of the round were usable; and their weights and scores, unless it was skipped."""
    asked = [worker for worker in range(len(names)) if worker not in record.quarantined]
    usable = [worker for worker in asked if worker not in record.errors]
    metrics = MetricRecord({"usable-replies": len(usable)})
    if record.weights is not None:
        metrics["own-share"] = float(record.own)
        metrics["nodes"] = [int(names[worker]) for worker in usable]
        metrics["weights"] = [float(record.weights[worker]) for worker in usable]
        if record.scores is not None:
            scores = [record.scores[worker] for worker in usable]
            metrics["scores"] = [-math.inf if score is None else float(score) for score in scores]
    return metrics


def how_far(record: Record) -> float | None:
    """The median length of the candidates, relative to the server's own; None if the rule has no samples."""
    lengths = [length for length in record.lengths or [] if length is not None]
    return median(lengths) if lengths else None


def curves(found: MetricRecord | None) -> dict[str, float]:
    """The loss, and the accuracy from 0 to 1, that `evaluate_fn` found: what the curves of a run folder show."""
    numbers = {name: value for name, value in (found or {}).items() if isinstance(value, int | float)}
    shown = {name: float(numbers[name]) for name in ("loss", "accuracy") if name in numbers}
    return {name: value for name, value in shown.items() if name == "loss" or 0 <= value <= 1}


def of_evaluation(contents: Iterable[RecordDict]) -> MetricRecord | None:
    """The median over the clients of each number that more than half of them sent; None if there is none.

    Not the mean, and not weighted by `num-examples`: one client that claims a loss of 1e30, or 1e18 samples, would be
    the result. Less than half of the clients can neither move a median far nor add a metric. More than half can: for
    numbers to rely on, pass `evaluate_fn` and evaluate on the server.
    """
    clients = [dict(_numbers(content)) for content in contents]
    names = dict.fromkeys(name for client in clients for name in client)
    found = {name: [client[name] for client in clients if name in client] for name in names}
    medians = {name: median(values) for name, values in found.items() if 2 * len(values) > len(clients)}
    medians = {name: value for name, value in medians.items() if math.isfinite(value)}
    return MetricRecord({**medians}) if medians else None


def _numbers(content: RecordDict) -> Iterator[tuple[str, float]]:
    """The finite numbers in a client's metrics."""
    records = (record for record in content.values() if isinstance(record, MetricRecord))
    items = (item for record in records for item in record.items())
    for name, value in islice(items, MOST_METRICS):
        if name != CLAIMED_WEIGHT and isinstance(value, int | float):
            try:
                number = float(value)
            except OverflowError:  # an int beyond all floats
                continue
            if math.isfinite(number):
                yield name, number
