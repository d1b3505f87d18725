"""Which rows are kept."""

import torch
from torch import Tensor


def keep_lowest(values: Tensor, num: int, ties: Tensor | None = None) -> Tensor:
    """[n] bool: the `num` lowest values; a tie goes to the lower of `ties` [n], then to the lower row."""
    order = torch.arange(len(values), device=values.device) if ties is None else ties.argsort(stable=True)
    kept = torch.zeros(len(values), dtype=torch.bool, device=values.device)
    kept[order[values[order].argsort(stable=True)[:num]]] = True
    return kept
