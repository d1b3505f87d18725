"""Zeno on candidates as they come: each is scored on arrival, and only the best m - trim are kept."""

import torch
from torch import Tensor

from zeno.rules.linalg.candidates import Candidates
from zeno.rules.linalg.passes import weighted_sum
from zeno.rules.rows import Rows
from zeno.rules.rule import Aggregate, Descent, TooFewUsable, check_more
from zeno.rules.zeno import Zeno


class Arrivals:
    """One step of Zeno: `add` what arrives, in any order, then take the `result`.

    The aggregate is that of `rule(candidates, descent)`, in memory for m - trim rows instead of m.
    """

    def __init__(self, rule: Zeno, workers: int, descent: Descent) -> None:
        if not rule.plain or not isinstance(rule.trim, int):
            raise ValueError(f"Arrivals needs a Zeno that is told all it needs, and has no memory. Found {rule}.")
        check_more(rule, "trim", rule.trim, workers)
        self.rule, self.descent = rule, descent
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
        row = Rows(Candidates(candidate[None]))
        score = float(self.rule.scores(row, self.descent)[0]) if row.n else -float("inf")
        if score == -float("inf"):  # not finite, or its score is not
            return score
        self.scores[worker] = score
        if self._best is None:
            self._best = candidate.detach().new_empty(self.keep, len(candidate))
        if len(self._rows) < self.keep:
            self._rows[worker] = len(self._rows)
            self._best[self._rows[worker]] = candidate
            return score
        worst = min(self._rows, key=lambda i: (float(self.scores[i]), -i))  # the lower worker wins a tie
        if (score, -worker) > (float(self.scores[worst]), -worst):
            self._rows[worker] = self._rows.pop(worst)
            self._best[self._rows[worker]] = candidate
        return score

    def result(self) -> Aggregate:
        """The average of the best; a worker that nothing came from is as good as unusable."""
        if self._best is None or len(self._rows) < self.keep:
            raise TooFewUsable(self.rule, self.keep, self.scores > -torch.inf)
        device = self._best.device
        kept = torch.zeros(len(self.scores), dtype=torch.bool, device=device)
        kept[list(self._rows)] = True
        weights = torch.full((self.keep,), 1 / self.keep, dtype=torch.float64, device=device)
        return Aggregate(weighted_sum(self._best, weights), self.scores.to(device), kept)
