"""Copies of a problem that work in parallel."""

import copy
from typing import TYPE_CHECKING

from zeno.problem.dataset import Batch
from zeno.problem.nested import NestedBatch
from zeno.problem.threads import one_thread

if TYPE_CHECKING:
    from zeno.problem.problem import Problem

PLAIN = (bool, int, float, str, tuple, type(None))


class Replicas:
    """Returns copies of a problem, which are made when first needed and kept in sync with it."""

    def __init__(self, original: "Problem") -> None:
        self.original = original
        self._copies: list[Problem] = []
        self._possible = True
        self._made_of: object = None  # the modules and buffers of the model when they were made

    def __call__(self, number: int, batch: Batch | NestedBatch) -> "list[Problem]":
        """`number` copies, tested on a few of the samples; the original alone if one is enough or none can be made."""
        model = self.original.model
        hooked = any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())
        if number < 2 or hooked or self.original.flat.device.type != "cpu":  # hooks may not be thread-safe
            return [self.original]
        made_of = list(model.modules()), [(name, buffer.shape) for name, buffer in model.named_buffers()]
        if made_of != self._made_of:
            self._made_of, self._copies, self._possible = made_of, [], True
        while self._possible and len(self._copies) < number:
            self._possible = self._add(batch.cut(slice(4)))
        if not self._possible:
            return [self.original]
        for replica in self._copies[:number]:
            self._synchronise(replica)
        return self._copies[:number]

    def _add(self, batch: Batch | NestedBatch) -> bool:
        """Adds a copy, if one can be made that computes with its own parameters."""
        frozen = {id(p): p for p in self.original.model.parameters() if not p.requires_grad}  # shared, not copied
        try:
            replica = type(self.original)(copy.deepcopy(self.original.model, frozen), self.original.loss_of)
        except Exception:  # whatever a model's __deepcopy__ raises
            return False
        replica.is_replica = True
        self._copies.append(replica)
        here = self.original.flat.clone()
        there = here * 1.01
        with one_thread(), self.original.buffers_unchanged():
            replica.load(there)
            self.original.model.eval()
            replica.model.eval()
            try:
                found = replica.loss_here(batch)
                self.original.load(there)
                return found == self.original.loss_here(batch)  # a copied closure may use the original's parameters
            except Exception:  # a model or a loss that checks its input
                return False
            finally:
                self.original.load(here)

    def _synchronise(self, replica: "Problem") -> None:
        """Copies what may have been set on the original since: plain attributes, modes, buffers."""
        for own, other in zip(self.original.model.modules(), replica.model.modules(), strict=True):
            vars(other).update({name: value for name, value in vars(own).items() if isinstance(value, PLAIN)})
        replica.load_buffers(self.original.buffers)
