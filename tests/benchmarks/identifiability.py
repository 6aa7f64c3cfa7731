"""Cost of the measures of a head, as ratios within one run: `python tests/benchmarks/identifiability.py`.

A layer like all-MiniLM-L6's, 12 heads of 32 and d_model 384, with random weights; float64 throughout.
"""

import torch
from _timing import medians
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


def measure_layer(n: int) -> None:
    """Print one line: what a layer's measures cost at `n` tokens, in units of its effective attention."""
    _, _, values, output_map, weights = layer(n)
    expected = full_projection(weights, values, output_map)
    assert torch.allclose(expected, effective_attention(weights, values, output_map))
    rows = torch.arange(0, n, n // 8)
    seconds = medians(
        9 if n < 512 else 5,
        {
            "full": lambda: full_projection(weights, values, output_map),
            "effective": lambda: effective_attention(weights, values, output_map),
            "slack": lambda: attention_slack(weights, values, output_map, rows=rows),
        },
    )
    seconds |= medians(1, {"entropy": lambda: max_entropy_attention(weights, values, output_map)})
    full, slack, entropy = (seconds[name] / seconds["effective"] for name in ("full", "slack", "entropy"))
    print(f"{n:4}   {full:20.1f}   {slack:27.1f}   {entropy:23.1f}")


def main() -> None:
    """Print ratios, and seconds where the aim is one."""
    print("   n   full SVD / effective   slack of 8 rows / effective   max-entropy / effective")
    for n in (64, 128, 256, 512):
        measure_layer(n)
    query, key, values, output_map, _ = (part[0] for part in layer(64))
    (seconds,) = medians(1, {"": lambda: alternative_attention(query, key, values, output_map)}).values()
    print(f"alternative_attention, n = 64: {seconds:.1f} s (aim: under 30)")
    _, _, values, output_map, weights = (part[0] for part in layer(128))
    (seconds,) = medians(3, {"": lambda: attention_intervals(weights[0], values, output_map)}).values()
    print(f"all intervals of a row, n = 128: {seconds:.2f} s (aim: under 1)")


if __name__ == "__main__":
    main()
