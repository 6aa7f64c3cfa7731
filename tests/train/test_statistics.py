import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from identiformer.train.statistics import (
    accuracy_interval,
    difference_interval,
    equivalence_interval,
    mcnemar,
    pareto_front,
)
from scipy.stats import binom, binomtest, bootstrap, t

LEVEL, MARGIN = 0.05, 0.02


def _right(seed, sides=(1, 1), texts=400, share=0.8, agreement=0.85):
    """Models that are right on `share` of the texts, and agree on the more of them the larger `agreement` is."""
    generator = np.random.default_rng(seed)
    common = generator.random(texts) < share
    models = [
        np.where(generator.random(texts) < agreement, common, generator.random(texts) < share)
        for _ in range(sum(sides))
    ]
    return np.stack(models[: sides[0]]), np.stack(models[sides[0] :])


def test_wilsons_interval_is_that_of_its_formula():
    # 90 of 100: (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)
    assert accuracy_interval(90, 100) == pytest.approx([0.825634, 0.944771], abs=1e-6)


def test_the_interval_of_two_models_is_the_paired_bootstraps():
    first, second = _right(0)
    samples = (second[0].astype(float), first[0].astype(float))
    options = {"paired": True, "method": "percentile", "n_resamples": 10_000, "rng": np.random.default_rng(1)}
    expected = bootstrap(samples, lambda x, y, axis: x.mean(axis) - y.mean(axis), **options).confidence_interval
    # Two Monte Carlo quantiles of differences that are multiples of 1 / 400, with a deviation of .02.
    assert difference_interval(first, second) == pytest.approx([expected.low, expected.high], abs=0.0026)


def test_the_interval_varies_with_texts_and_seeds_as_it_should():
    first, second = _right(1, sides=(9, 6), texts=1500)
    for number, model in enumerate(first):
        model[: 30 * number] = False  # seeds that differ far more than chance makes them
    lower, upper = difference_interval(first, second, level=0.6827)
    of_texts = (second.mean(0) - first.mean(0)).var() / 1500
    of_seeds = sum(side.mean(1).var(ddof=1) / len(side) for side in (first, second))
    assert of_seeds > 4 * of_texts
    # A normal interval of that level reaches one deviation to each side; a mean of 8 draws is nearly normal.
    assert (upper - lower) / 2 == pytest.approx(np.sqrt(of_seeds + of_texts), rel=0.06)


@pytest.mark.parametrize("seed", range(4))
def test_mcnemars_test_of_two_models_is_the_exact_binomial_one(seed):
    first, second = _right(seed, texts=60)
    gained, lost = int((second & ~first).sum()), int((first & ~second).sum())
    assert mcnemar(first, second) == pytest.approx(binomtest(gained, gained + lost).pvalue, rel=1e-12)


@pytest.mark.parametrize("sides", [(2, 2), (3, 3), (2, 3), (1, 3)])
def test_mcnemars_test_of_several_seeds_counts_all_choices_of_signs(sides):
    first, second = _right(5, sides=sides, texts=12, share=0.6, agreement=0.5)
    differences = second.mean(0) - first.mean(0)
    sums = [np.dot(signs, differences) for signs in itertools.product((-1, 1), repeat=12)]
    expected = np.mean(np.abs(sums) >= abs(differences.sum()) - 1e-9)
    assert mcnemar(first, second) == pytest.approx(expected, rel=1e-12)


def test_mcnemars_test_of_many_texts_is_close_to_the_exact_one():
    first = np.zeros((1, 1100), dtype=bool)
    second = ~first
    first[0, :500], second[0, :500] = True, False
    # The normal tail at z = 3 beside the binomial's: 1 % of a p-value's size for each of 1 / sqrt(1100).
    assert mcnemar(first, second) == pytest.approx(binomtest(600, 1100).pvalue, rel=0.1)


def test_models_that_are_right_on_the_same_texts_do_not_differ():
    first, _ = _right(2)
    assert mcnemar(first, first) == 1
    assert difference_interval(first, first) == [0, 0]
    lower, upper = equivalence_interval(first, first)
    assert -lower == upper == pytest.approx(3 / 400, abs=0.3 / 400)  # the rule of three: 0 of 400 speaks for up to 3


@given(st.integers(0, 1000), st.integers(1, 4), st.integers(1, 4))
def test_the_other_way_round_everything_is_mirrored(seed, one, other):
    first, second = _right(seed, sides=(one, other), texts=40)
    assert equivalence_interval(second, first) == pytest.approx(
        [-end for end in equivalence_interval(first, second)][::-1]
    )
    assert mcnemar(second, first) == pytest.approx(mcnemar(first, second))


def _error(texts, margin, other_way):
    """Chance that two models are called equally performant, though their accuracies are `margin` apart, exactly.

    `other_way` is the share of texts that only the worse one classifies rightly.
    """
    chances = other_way, margin + other_way
    differing = np.arange(min(texts, int(texts * sum(chances) + 8 * np.sqrt(texts * sum(chances)) + 20)) + 1)[:, None]
    gained = differing.T
    lower, upper = _interval_by_counts(texts, gained, np.maximum(differing - gained, 0))
    chance = binom.pmf(differing, texts, sum(chances)) * binom.pmf(gained, differing, chances[0] / sum(chances))
    return chance[(-margin < lower) & (upper < margin)].sum()


def _interval_by_counts(texts, gained, lost):
    """`equivalence_interval` of two models, from the counts of texts that only one of them classifies rightly."""
    mean = (gained - lost) / texts
    reach = t.isf(LEVEL, texts - 1) * np.sqrt(gained + lost - texts * mean**2 + 0.75) / texts
    reach += (1.6448536269514722**2 + 2) / 3 / texts
    return mean - reach, mean + reach


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (3, 0), (7, 11)])
def test_the_counts_of_two_models_are_enough(gained, lost):
    first = np.zeros((1, 50), dtype=bool)
    second = first.copy()
    second[0, :gained], first[0, gained : gained + lost] = True, True
    assert equivalence_interval(first, second) == pytest.approx(_interval_by_counts(50, gained, lost))


def test_seeds_that_do_the_same_are_as_one():
    first, second = _right(4)
    expected = equivalence_interval(first, second)
    assert equivalence_interval(first.repeat(3, 0), second.repeat(2, 0)) == pytest.approx(expected)


def test_seeds_that_do_far_more_than_texts_give_students_interval():
    first = np.zeros((4, 3000), dtype=bool)
    for seed, right in enumerate((600, 1500, 1600, 2400)):
        first[seed, :right] = True
    second = np.zeros((1, 3000), dtype=bool)
    expected = t.isf(LEVEL, 3) * first.mean(1).std(ddof=1) / 2
    lower, upper = equivalence_interval(first, second)
    assert (upper - lower) / 2 == pytest.approx(expected, rel=0.02)  # texts' part is a hundredth of its square


@pytest.mark.parametrize("texts", [20, 115, 300, 500])
@pytest.mark.parametrize("margin", [0.01, 0.02, 0.1])
@pytest.mark.parametrize("other_way", [0, 0.001, 0.03])
def test_two_models_a_margin_apart_are_hardly_ever_called_equal(texts, margin, other_way):
    assert _error(texts, margin, other_way) <= LEVEL


@pytest.mark.parametrize(
    ("sides", "deviation"), [((1, 1), 0), ((3, 3), 0), ((2, 2), 0.01), ((3, 3), 0.01), ((2, 5), 0.02), ((3, 3), 0.05)]
)
def test_layers_a_margin_apart_are_hardly_ever_called_equal_whatever_the_seeds_do(sides, deviation):
    """Texts and seeds are drawn anew each time; `deviation` is that of accuracy over seeds."""
    margin, texts, trials = 0.1, 300, 1000
    generator = np.random.default_rng(sum(sides))
    called = 0
    for _ in range(trials):
        common = generator.random(texts)  # how hard each text is for everybody
        models = []
        for accuracy, seeds in zip((0.8, 0.8 - margin), sides, strict=True):
            skill = accuracy + deviation * generator.standard_normal((seeds, 1))
            own = generator.random((2, seeds, texts))
            models.append(np.where(own[0] < 0.8, common, own[1]) < skill)
        lower, upper = equivalence_interval(*models)
        called += -margin < lower and upper < margin
    assert called <= binom.ppf(0.999, trials, LEVEL)


def test_layers_that_are_equal_are_called_so_when_there_are_enough_texts():
    first, second = _right(3, sides=(3, 3), texts=20_000)
    lower, upper = equivalence_interval(first, second)
    assert -MARGIN < lower < upper < MARGIN


def test_the_front_is_what_no_other_point_surpasses():
    points = np.array([[0, 3], [1, 2], [1, 1], [2, 0], [0, 3], [-1, 3]])
    assert pareto_front(*points.T).tolist() == [True, True, False, True, True, False]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_the_front_is_that_of_its_definition(points):
    front = pareto_front(*np.array(points).T)
    for point, on_front in zip(points, front, strict=True):
        surpassed = any(x >= point[0] and y >= point[1] and (x, y) != point for x, y in points)
        assert on_front == (not surpassed)
