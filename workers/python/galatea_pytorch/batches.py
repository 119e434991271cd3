"""Batches: joins the requests' tensors along the first dimension and splits the results."""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple


def join(torch: Any, inputs: Sequence[Sequence[Any]]) -> Tuple[List[Any], List[int]]:
    """Returns the batch inputs and each request's number of rows."""
    rows = [tensors[0].size()[0] for tensors in inputs]
    if len(inputs) == 1:
        return list(inputs[0]), rows
    return [torch.cat(parts, 0) for parts in zip(*inputs)], rows


def split(torch: Any, outputs: Sequence[Any], rows: List[int]) -> List[List[Any]]:
    """Returns each request's outputs."""
    columns = [torch.split(output, rows) for output in outputs]
    return [list(parts) for parts in zip(*columns)]
