"""Zeno on a stream of candidates: each is scored on arrival, and only the best m - trim are held in memory."""

import math

import numpy as np
import torch
from torch import Tensor

from zeno.problem.flat import plain_tensor
from zeno.rules.linalg.geometry import Geometry
from zeno.rules.linalg.passes import weighted_sum
from zeno.rules.rule import Aggregate, Oracle, Rows, TooFewUsable
from zeno.rules.zeno import Zeno


class Arrivals:
    """One step of Zeno: `add` each candidate as it arrives, in any order, then take the `result`.

    The aggregate is that of `rule(candidates, oracle)`, in memory for m - trim + 1 rows instead of m. Candidates need
    the shape of `like` [d], such as the parameters, and are copied in its dtype to its device. One of another shape, or
    not of floating point, is unusable, as one with NaN is.
    """

    def __init__(self, rule: Zeno, workers: int, oracle: Oracle, like: Tensor) -> None:
        if not isinstance(rule, Zeno):
            raise ValueError(f"Arrivals needs a rule of type Zeno, which scores candidates one by one. Found {rule}.")
        if rule.trim >= workers:
            found = f"{workers} with trim={rule.trim}"
            raise ValueError(f"Zeno needs more than trim candidates. Found {found}. Lower trim or add workers.")
        if like.ndim != 1:
            raise ValueError(f"Arrivals needs like as a vector, such as the parameters. Found {list(like.shape)}.")
        self.rule, self.oracle = rule, oracle
        self.keep = workers - rule.trim
        self.scores = torch.full((workers,), -torch.inf, dtype=torch.float64)
        self._memory = like.detach().new_empty(self.keep + 1, len(like))
        self._rows: dict[int, int] = {}  # worker -> its row
        self._free = 0  # the row that is free
        self._seen: set[int] = set()

    @property
    def free_row(self) -> Tensor:
        """[d], where the next candidate is copied to. One that was written there already is not copied again."""
        return self._memory[self._free]

    def add(self, worker: int, candidate: Tensor | np.ndarray) -> float:
        """Copies a candidate [d], scores the copy, keeps it if it is among the best so far, and returns the score."""
        if not 0 <= worker < len(self.scores) or worker in self._seen:
            why = "was added before" if worker in self._seen else f"is not one of {len(self.scores)}"
            raise ValueError(f"Arrivals takes one candidate from each worker. Found worker {worker}, which {why}.")
        self._seen.add(worker)
        row, sent = self.free_row, plain_tensor(candidate)
        if sent is None or sent.shape != row.shape or not sent.is_floating_point():
            return -math.inf
        if sent.data_ptr() != row.data_ptr():
            row.copy_(sent)
        alone = Geometry(row[None])
        score = float(self.rule.scores(Rows(alone, self.rule), self.oracle)) if bool(alone.usable) else -math.inf
        if score == -math.inf:
            return score
        self.scores[worker] = score
        self._rows[worker] = self._free
        if len(self._rows) <= self.keep:
            self._free = len(self._rows)
        else:
            worst = min(self._rows, key=lambda i: (float(self.scores[i]), -i))  # a tie: the lower one stays
            self._free = self._rows.pop(worst)
        return score

    def result(self) -> Aggregate:
        """The average of the best; a worker without a candidate counts as unusable."""
        if len(self._rows) < self.keep:
            if not self._rows:
                self.oracle.descents(self.free_row.zero_()[None])  # raises if the server's samples are to blame
            raise TooFewUsable.of(self.rule, self.keep, self.scores > -torch.inf)
        weights = torch.zeros(len(self.scores), dtype=torch.float64, device=self._memory.device)
        weights[list(self._rows)] = 1 / self.keep
        by_row = torch.full((self.keep + 1,), 1 / self.keep, dtype=torch.float64, device=self._memory.device)
        by_row[self._free] = 0
        return Aggregate(weighted_sum(self._memory, by_row), weights, self.scores.to(weights.device))
