"""Zeno on a stream of candidates: each is scored on arrival, and only the best m - trim are held in memory."""

import math

import torch
from torch import Tensor

from zeno.rules.linalg.geometry import Geometry
from zeno.rules.linalg.passes import weighted_sum
from zeno.rules.rule import Aggregate, Oracle, Rows, TooFewUsable
from zeno.rules.zeno import Zeno


class Arrivals:
    """One step of Zeno: `add` each candidate as it arrives, in any order, then take the `result`.

    The aggregate is that of `rule(candidates, oracle)`, in memory for m - trim rows instead of m.
    """

    def __init__(self, rule: Zeno, workers: int, oracle: Oracle) -> None:
        if not isinstance(rule, Zeno):
            raise ValueError(f"Arrivals needs a rule of type Zeno, which scores candidates one by one. Found {rule}.")
        if rule.trim >= workers:
            found = f"{workers} with trim={rule.trim}"
            raise ValueError(f"Zeno needs more than trim candidates. Found {found}. Lower trim or add workers.")
        self.rule, self.oracle = rule, oracle
        self.keep = workers - rule.trim
        self.scores = torch.full((workers,), -torch.inf, dtype=torch.float64)
        self._rows: dict[int, int] = {}  # worker -> its row in `_best`
        self._best: Tensor | None = None  # [m - trim, d]
        self._seen: set[int] = set()

    def add(self, worker: int, candidate: Tensor) -> float:
        """Scores a candidate [d], keeps a copy if it is among the best so far, and returns the score."""
        if not 0 <= worker < len(self.scores) or worker in self._seen:
            why = "was added before" if worker in self._seen else f"is not one of {len(self.scores)}"
            raise ValueError(f"Arrivals takes one candidate from each worker. Found worker {worker}, which {why}.")
        if self._best is not None and candidate.shape != self._best.shape[1:]:
            raise ValueError(
                f"Arrivals needs {self._best.shape[1]} numbers from worker {worker}. Found {list(candidate.shape)}."
            )
        self._seen.add(worker)
        alone = Geometry(candidate[None])
        score = float(self.rule.scores(Rows(alone, self.rule), self.oracle)) if bool(alone.usable) else -math.inf
        if score == -math.inf:
            return score
        self.scores[worker] = score
        if self._best is None:
            self._best = candidate.detach().new_empty(self.keep, len(candidate))
        row = len(self._rows)
        if row == self.keep:
            worst = min([*self._rows, worker], key=lambda i: (float(self.scores[i]), -i))  # a tie: the lower one stays
            if worst == worker:
                return score
            row = self._rows.pop(worst)
        self._rows[worker] = row
        self._best[row] = candidate
        return score

    def result(self) -> Aggregate:
        """The average of the best; a worker without a candidate counts as unusable."""
        if self._best is None or len(self._rows) < self.keep:
            raise TooFewUsable.of(self.rule, self.keep, self.scores > -torch.inf)
        device = self._best.device
        weights = torch.zeros(len(self.scores), dtype=torch.float64, device=device)
        weights[list(self._rows)] = 1 / self.keep
        return Aggregate(weighted_sum(self._best, weights[list(self._rows)]), weights, self.scores.to(device))
