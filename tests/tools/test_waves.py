"""Tiles and waves of matmuls against multiprocessors that take tiles one after the other."""

import heapq

import pytest

from fourfold.model.work import Gemm
from tools import step_kernels
from tools.waves import TILES, waste

SHAPES = [
    (523, 2048, 4096, False, 1),
    (1024, 4096, 14336, False, 1),
    (4096, 1, 7, False, 1),
    (128, 128, 64, True, 1),
    (4096, 28672, 4096, False, 8),
    (14336, 4096, 4096, True, 8),
]


def _worked(gemm: Gemm, tile: tuple[int, int], multiprocessors: int) -> tuple[float, int]:
    """Each multiprocessor takes the next tile when it is done: the share of their time within the result, and the time."""
    rows = gemm.rows if gemm.accumulates else gemm.rows // gemm.groups
    free = [0] * multiprocessors
    inside = 0
    for _ in range(gemm.groups):
        for top in range(0, rows, tile[0]):
            for left in range(0, gemm.columns, tile[1]):
                heapq.heapreplace(free, free[0] + 1)
                inside += min(tile[0], rows - top) * min(tile[1], gemm.columns - left)
    return inside / (max(free) * multiprocessors * tile[0] * tile[1]), max(free)


@pytest.mark.parametrize("multiprocessors", [1, 108, 132])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_waste_is_what_multiprocessors_do_not_work(
    shape: tuple[int, int, int, bool, int], multiprocessors: int
) -> None:
    gemm = Gemm(*shape)
    found = waste(gemm, multiprocessors)
    worked = {tile: _worked(gemm, tile, multiprocessors) for tile in TILES}
    assert found.share == pytest.approx(1 - max(share for share, _ in worked.values()))
    assert (1 - found.share, found.waves) == pytest.approx(worked[found.tile])


def test_the_tool_lists_every_matmul_by_what_it_wastes(capsys: pytest.CaptureFixture[str]) -> None:
    """With shares of the step that sum to the one above."""
    run = ["preset:llama3.1-8b-128", "--cluster", "dgx-h100:128"]
    assert step_kernels.main(run) == 0
    out = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in out if "x128 " in line or "x256 " in line]
    wasted = [float(row[11]) for row in rows]
    assert len(rows) >= 9
    assert wasted == sorted(wasted, reverse=True)
    total = float(out[0].split(": ")[1].split()[0])
    assert sum(wasted) == pytest.approx(total, abs=0.1)
    by_operator, by_kernels = (
        next(line.split() for line in out if line.startswith(name)) for name in ("operator", "in kernels")
    )
    assert float(by_kernels[5]) < 0.5 * float(by_operator[3])


def test_a_wrong_number_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        step_kernels.main(["preset:llama3.1-8b-128", "--multiprocessors", "0"])
    assert ended.value.code == 2
    assert "what works: 132" in capsys.readouterr().err
    assert step_kernels.main(["no-such-run.toml"]) == 2
    assert "no-such-run.toml" in capsys.readouterr().err
