"""One calibration pass over tables with small columns, beside the same pass with NumPy's plain reductions.

    python benchmarks/bench_reductions.py

Each case is a chain of overlapping cliques of equally small columns, with random potentials. The marginals have the
same bits (checked). CPU ms of one pass, the least of 25; the two kinds of pass take turns.
"""

from __future__ import annotations

import time
from unittest.mock import patch

import numpy as np

from fedsyn.domain import Domain
from fedsyn.inference import calibrate
from fedsyn.inference.calibrate import Calibrator, inner_first
from fedsyn.inference.junction_tree import axes_of, build_tree

# Sizes of the columns, columns of a clique.
_CASES = (((2,) * 24, 14), ((2, 3, 4) * 6, 9), ((4,) * 12, 8), ((7,) * 8, 6), ((16,) * 6, 4), ((32,) * 6, 3))


def calibrator(sizes: tuple[int, ...], width: int, plain: bool) -> Calibrator:
    names = tuple(f"a{i:02d}" for i in range(len(sizes)))
    axes = axes_of(Domain(names, sizes))
    cliques = [names[i : i + width] for i in range(0, len(names) - width + 1, max(1, width // 3))]
    masks = sorted({axes.mask(clique) for clique in [*cliques, *((name,) for name in names)]})
    tree = build_tree(axes, masks)
    if not plain:
        made = Calibrator(tree, masks)
    else:
        with (
            patch.object(calibrate, "turns", lambda *step: False),
            patch.object(calibrate, "outer_first", inner_first),
        ):
            made = Calibrator(tree, masks)
    made.theta[:] = np.random.default_rng(0).standard_normal(made.theta.size)
    return made


def main() -> None:
    print("columns of     cells   plain ms   ours ms   times")
    for sizes, width in _CASES:
        passes = [calibrator(sizes, width, plain) for plain in (True, False)]
        best = [float("inf")] * 2
        for _ in range(25):
            for index, one in enumerate(passes):
                start = time.process_time()
                one.run()
                best[index] = min(best[index], time.process_time() - start)
        assert passes[0].marginals.tobytes() == passes[1].marginals.tobytes()
        values = ",".join(map(str, sorted(set(sizes))))
        cells = sum(passes[0].tree.cells)
        print(
            f"{values:>10} {cells:9d} {best[0] * 1e3:10.3f} {best[1] * 1e3:9.3f} {best[0] / best[1]:7.2f}", flush=True
        )


if __name__ == "__main__":
    main()
