"""Cost of the measures of a head, as ratios within one run: `python tests/benchmarks/identifiability.py`.

A layer like all-MiniLM-L6's, 12 heads of 32 and d_model 384, with random weights; float64 throughout.
"""

import statistics
import time
from collections.abc import Callable

import torch
from identiformer.models.identifiability import (
    alternative_attention,
    attention_intervals,
    attention_slack,
    effective_attention,
    max_entropy_attention,
)

HEADS, SIZE, WIDTH = 12, 32, 384


def layer(n: int):
    """Queries, keys, values, output map and weights of a random layer."""
    normal = {"generator": torch.Generator().manual_seed(n), "dtype": torch.float64}
    query, key, values = (torch.randn(HEADS, n, SIZE, **normal) for _ in range(3))
    output_map = torch.randn(HEADS, SIZE, WIDTH, **normal) / SIZE**0.5
    return query, key, values, output_map, (query @ key.mT / SIZE**0.5).softmax(-1)


def full_projection(weights, values, output_map):
    """What the papers do: the full SVD of T, and the part of A in its left null space subtracted."""
    left, singular_values, _ = torch.linalg.svd(values @ output_map, full_matrices=True)
    rank = int((singular_values[0] > singular_values[0, 0] * 1e-5).sum())
    free = left[..., rank:]
    return weights - weights @ free @ free.mT


def medians(repeats: int, *functions: Callable[[], object]) -> list[float]:
    """Median seconds of some functions, run in turn."""
    seconds = [[] for _ in functions]
    for _ in range(repeats):
        for function, times in zip(functions, seconds, strict=True):
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in seconds]


def measure_layer(n: int) -> None:
    """Print one line: what a layer's measures cost at `n` tokens, in units of its effective attention."""
    _, _, values, output_map, weights = layer(n)
    expected = full_projection(weights, values, output_map)
    assert torch.allclose(expected, effective_attention(weights, values, output_map))
    rows = torch.arange(0, n, n // 8)
    full, effective, slack = medians(
        9 if n < 512 else 5,
        lambda: full_projection(weights, values, output_map),
        lambda: effective_attention(weights, values, output_map),
        lambda: attention_slack(weights, values, output_map, rows=rows),
    )
    (entropy,) = medians(1, lambda: max_entropy_attention(weights, values, output_map))
    print(f"{n:4}   {full / effective:20.1f}   {slack / effective:27.1f}   {entropy / effective:23.1f}")


def main() -> None:
    """Print ratios, and seconds where the aim is one."""
    print("   n   full SVD / effective   slack of 8 rows / effective   max-entropy / effective")
    for n in (64, 128, 256, 512):
        measure_layer(n)
    query, key, values, output_map, _ = (part[0] for part in layer(64))
    (seconds,) = medians(1, lambda: alternative_attention(query, key, values, output_map))
    print(f"alternative_attention, n = 64: {seconds:.1f} s (aim: under 30)")
    _, _, values, output_map, weights = (part[0] for part in layer(128))
    (seconds,) = medians(3, lambda: attention_intervals(weights[0], values, output_map))
    print(f"all intervals of a row, n = 128: {seconds:.2f} s (aim: under 1)")


if __name__ == "__main__":
    main()
