"""Several inputs for the same records, written out."""

from __future__ import annotations

import torch

from vertizo.models.base import Points

ROWS = torch.arange(8.0).view(2, 4)


def test_rows_alone_are_one_point() -> None:
    assert len(Points(ROWS)) == 1


def test_points_are_written_out_in_order() -> None:
    one = torch.tensor([[[10.0], [20.0]], [[-10.0], [-20.0]]])
    other = torch.full((1, 2, 2), 100.0)
    points = Points(ROWS, ((3, one), (0, other)))
    assert len(points) == 4
    assert points.changed().tolist() == [
        [0, 1, 2, 13],
        [4, 5, 6, 27],
        [0, 1, 2, -7],
        [4, 5, 6, -13],
        [100, 101, 2, 3],
        [104, 105, 6, 7],
    ]
    assert torch.equal(ROWS, torch.arange(8.0).view(2, 4))
