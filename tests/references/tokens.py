"""Slow twin of the search of `token_identifiability`, one token at a time."""

import numpy as np


def found(mapped, inputs, texts, ids, lookup):
    """For every token whether an input of its own id is nearer to what it is mapped to than all others of its text."""
    return np.array([_found(token, mapped, inputs, texts, ids, lookup) for token in range(len(mapped))])


def _found(token, mapped, inputs, texts, ids, lookup):
    rivals = [place for place in range(len(inputs)) if texts[place] == texts[token]]
    distances = {place: _distance(mapped[token], inputs[place], lookup) for place in rivals}
    own = min(distances[place] for place in rivals if ids[place] == ids[token])
    return all(own < distances[place] for place in rivals if ids[place] != ids[token])


def _distance(a, b, lookup):
    if lookup == "l2":
        return np.sqrt(((a - b) ** 2).sum())
    return 1 - a @ b / np.sqrt((a @ a) * (b @ b))
