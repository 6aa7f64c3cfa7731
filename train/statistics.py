"""Statistics of scores."""

import math

import numpy as np
from scipy.stats import binom, binomtest, norm, t

RESAMPLES = 10_000
EXACT = 1_000  # texts that differ, up to which McNemar's test is exact


def accuracy_interval(right: int, rows: int) -> list[float]:
    """Wilson's 95 % interval of an accuracy."""
    interval = binomtest(right, rows).proportion_ci(method="wilson")
    return [float(interval.low), float(interval.high)]


def difference_interval(first: np.ndarray, second: np.ndarray, level: float = 0.95, seed: int = 0) -> list[float]:
    """Bootstrap interval of how much more often `second` is right than `first`.

    What varies is which texts are in the test set and which seeds models were trained with. So a resample draws texts
    with replacement, the same ones for all models, since they are paired; and on each side, on its own, S - 1 of its S
    seeds with replacement, which gives their mean the variance that it has (Rao and Wu 1988, section 2; drawing S would
    give it (S - 1) / S of that). What texts and seeds do together counts more than once, on the safe side (Owen 2007).
    A side with one seed keeps it: the interval is about that model then, and says nothing of others trained alike. The
    interval's ends are percentiles.

    Shape:
        first, second: *(seeds, texts)*, bool, whether a model classified a text rightly; the same texts in both.
    """
    generator = np.random.default_rng(seed)
    patterns, counts = np.unique(np.concatenate([first, second]), axis=1, return_counts=True)
    drawn = generator.multinomial(first.shape[1], counts / counts.sum(), RESAMPLES)  # (resamples, patterns)
    accuracies = drawn @ patterns.T / first.shape[1]  # (resamples, seeds of both)
    sides = np.split(accuracies, [len(first)], axis=1)
    means = [
        np.take_along_axis(side, generator.integers(side.shape[1], size=(RESAMPLES, max(side.shape[1] - 1, 1))), 1)
        for side in sides
    ]
    differences = means[1].mean(1) - means[0].mean(1)
    return np.quantile(differences, [(1 - level) / 2, (1 + level) / 2]).tolist()


def mcnemar(first: np.ndarray, second: np.ndarray) -> float:
    """Two-sided p-value of McNemar's test that two sides, as trained, are right equally often.

    With one model a side it is the exact binomial test on the texts that only one of them classified rightly. With
    several it compares, text by text, the shares of models that were right: under the hypothesis a text's difference
    is as likely to have the other sign, and the p-value is the share of all choices of signs that give a sum as far
    from 0. Above 1,000 texts that differ the sum is taken as normal. Seeds are not what varies here: it is about these
    models, not about others trained alike.

    Shape:
        first, second: As for `difference_interval`.
    """
    whole = math.lcm(len(first), len(second))
    differences = second.sum(0) * (whole // len(second)) - first.sum(0) * (whole // len(first))
    sizes = np.abs(differences[differences != 0])
    if len(sizes) > EXACT:
        return float(2 * norm.sf(abs(differences.sum()) / np.sqrt((sizes**2).sum())))
    chances = np.ones(1)  # of each sum of the sizes whose sign is positive
    for size, count in zip(*np.unique(sizes, return_counts=True), strict=True):
        part = np.zeros(size * count + 1)
        part[::size] = binom.pmf(np.arange(count + 1), count, 0.5)
        chances = np.convolve(chances, part)
    distances = np.abs(2 * np.arange(len(chances)) - sizes.sum())
    return min(1.0, float(chances[distances >= abs(differences.sum())].sum()))


def equivalence_interval(first: np.ndarray, second: np.ndarray, level: float = 0.90) -> list[float]:
    """Interval of how much more often `second` is right than `first`, made for tests of equivalence.

    Two sides are equally performant within a margin when this interval lies within it: two one-sided tests, each at
    (1 - level) / 2. As in `difference_interval` texts are paired and vary, and so do seeds where a side has several.
    With d_i a text's difference between the shares of models that are right, n texts, S seeds, q_n and q_S quantiles
    of Student's t with n - 1 and S - 1 degrees of freedom, the reach to each side is

        reach^2 = q_n^2 (V - sum W) + sum q_S^2 s^2 / S,  but not less than q_n^2 V
        V = sum_i (d_i - mean d)^2 / n^2,  s^2: variance of a side's accuracies over its seeds

    where sums are over sides with several seeds, and W, the mean variance of a text over seeds / (n S), is the part of
    V that is in s^2, too. Variances of small samples are put together as squares of reaches (Zou and Donner 2008),
    which keeps the level whatever share texts and seeds have; Satterthwaite's degrees of freedom would make an error of
    .05 one of .085 at two seeds.

    Where hardly a text differs, and all that do differ one way, their count is nearly Poisson, and normal limits would
    find equivalence far too often. So the sum in V is 3/4 larger, and both ends are (z^2 + 2) / 3 texts further out,
    which makes them those of a Poisson count to .02 texts.

    Shape:
        first, second: As for `difference_interval`.
    """
    tail, texts = (1 - level) / 2, first.shape[1]
    differences = second.mean(0) - first.mean(0)
    quantile = t.isf(tail, texts - 1) ** 2
    of_texts = quantile * (((differences - differences.mean()) ** 2).sum() + 0.75) / texts**2
    of_seeds = 0.0
    for side in (first, second):
        if (seeds := len(side)) > 1:
            of_seeds += t.isf(tail, seeds - 1) ** 2 * side.mean(1).var(ddof=1) / seeds
            of_seeds -= quantile * side.var(0, ddof=1).mean() / (texts * seeds)
    reach = np.sqrt(of_texts + max(of_seeds, 0.0)) + (norm.isf(tail) ** 2 + 2) / 3 / texts
    return np.clip([differences.mean() - reach, differences.mean() + reach], -1, 1).tolist()


def pareto_front(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Which points no other one surpasses in one coordinate without falling behind in the other, *(points,)* bool."""
    points = np.stack([first, second], -1)
    no_worse = (points[:, None] >= points).all(-1)  # (points, points): the former than the latter
    better = (points[:, None] > points).any(-1)
    return np.logical_not((no_worse & better).any(0))
