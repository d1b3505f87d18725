"""The benchmark of strategies says how well they do, or what ended the run."""

from typing import Any

from benchmarks.flower import GOOD, NUMBERS, SERVER, STRATEGIES, Cell, cells, measure, table
from federated.in_process import MALICIOUS, run_config

CONFIG = run_config(task="digits", **{"num-server-rounds": 3, "local-steps": 5})


def test_a_run_that_ends_is_reported_with_its_round_and_error() -> None:
    found = measure(("FedAvg", 2, "other keys"), CONFIG)
    assert (found["ended"], found["error"]) == (1, "InconsistentMessageReplies")


def test_the_control_leaves_the_malicious_out_and_zeno_survives_them() -> None:
    four, ten = (measure((GOOD, bad, ""), CONFIG)["accuracy"] for bad in (6, 0))
    assert four != ten
    assert ten == measure(("FedAvg", 0, ""), CONFIG)["accuracy"]
    found = measure(("ZenoStrategy", 6, "nan"), CONFIG)
    assert found["accuracy"] > 0.11, "NaN would always answer the same digit"
    assert found["seconds"] > 0


def test_the_table_has_a_row_for_every_strategy_and_both_controls() -> None:
    done: dict[Cell, dict[str, Any]] = {cell: {"accuracy": 0.5, "seconds": 0.25} for cell in cells()}
    done["FedAvg", 2, "nan"] = {"error": "ValueError", "ended": 3, "seconds": 0.1}
    lines = table(done).splitlines()
    assert len(lines) == 2 + len(STRATEGIES) + 2
    assert "| FedAvg | 50.0 | 50.0 | 50.0 | ValueError in round 3 / 50.0 / 50.0 | 50.0 | 0.250 |" in lines
    assert all(line.count("|") == len(MALICIOUS) + 4 for line in lines)
    assert lines[-2].startswith(f"| {GOOD}")
    assert lines[-1].startswith(f"| {SERVER}")
    assert len(done) == 1 + 1 + len(NUMBERS) + len(STRATEGIES) * (1 + len(NUMBERS) * len(MALICIOUS))
