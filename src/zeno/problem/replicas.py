"""Copies of a problem that work at the same time as each other."""

import copy
from typing import TYPE_CHECKING

from zeno.problem.dataset import Batch
from zeno.problem.threads import one_thread

if TYPE_CHECKING:
    from zeno.problem.problem import Problem

PLAIN = (bool, int, float, str, tuple, type(None))


class Replicas:
    """Copies of a problem, made when they are first asked for and kept in step with it."""

    def __init__(self, original: "Problem") -> None:
        self.original = original
        self._copies: list[Problem] = []
        self._possible = True
        self._made_of: object = None  # what the model consisted of when they were made

    def take(self, number: int, batch: Batch) -> "list[Problem]":
        """That many copies; or the original alone, where only one is wanted or none can be made."""
        model = self.original.model
        hooked = any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())
        if number < 2 or hooked or self.original.flat.device.type != "cpu":  # hooks may not expect company
            return [self.original]
        made_of = list(model.modules()), [(name, buffer.shape) for name, buffer in model.named_buffers()]
        if made_of != self._made_of:
            self._made_of, self._copies, self._possible = made_of, [], True
        while self._possible and len(self._copies) < number:
            replica = self._make()
            if replica is not None and self._stands_alone(replica, Batch(batch.inputs[:4], batch.targets[:4])):
                self._copies.append(replica)
            else:
                self._possible = False
        if not self._possible:
            return [self.original]
        for replica in self._copies[:number]:
            self._bring_in_step(replica)
        return self._copies[:number]

    def _make(self) -> "Problem | None":
        frozen = {id(p): p for p in self.original.model.parameters() if not p.requires_grad}  # shared, not copied
        try:
            replica = type(self.original)(copy.deepcopy(self.original.model, frozen), self.original.loss_of)
        except Exception:  # whatever a model's own way of being copied raises
            return None
        replica.has_company = True
        return replica

    def _stands_alone(self, replica: "Problem", batch: Batch) -> bool:
        """Whether it computes with its own parameters: a copied closure would still use the original's."""
        here = self.original.flat.clone()
        there = here * 1.01
        with one_thread(), self.original.buffers_unchanged():
            replica.load(there)
            self.original.model.eval()
            replica.model.eval()
            found = replica.loss_here(batch)
            self.original.load(there)
            expected = self.original.loss_here(batch)
            self.original.load(here)
        return found == expected

    def _bring_in_step(self, replica: "Problem") -> None:
        """Hands over what may have been set on the original since: rates, modes, buffers."""
        for own, other in zip(self.original.model.modules(), replica.model.modules(), strict=True):
            vars(other).update({name: value for name, value in vars(own).items() if isinstance(value, PLAIN)})
        replica.load_buffers(self.original.buffers)
