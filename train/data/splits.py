"""Stratified splits."""

from collections import defaultdict

import numpy as np


def stratified_split(labels: list[str], shares: list[float], seed: int) -> list[list[int]]:
    """Places of the rows of each part, in file order, every class divided by `shares` as nearly as whole rows allow.

    What rounding leaves over goes to the first part, so that a class of one row is never lost to it.
    """
    places = defaultdict(list)
    for place, label in enumerate(labels):
        places[label].append(place)
    parts: list[list[int]] = [[] for _ in shares]
    generator = np.random.default_rng(seed)
    for label in sorted(places):
        shuffled = generator.permutation(places[label]).tolist()
        for part, share in reversed(list(enumerate(shares))):
            taken = round(share * len(places[label])) if part else len(shuffled)
            parts[part] += shuffled[:taken]
            del shuffled[:taken]
    return [sorted(part) for part in parts]
