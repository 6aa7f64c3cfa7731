from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from identiformer.train.data.splits import stratified_split

labels = st.lists(st.sampled_from("abcd"), min_size=1, max_size=80)


@given(labels=labels, seed=st.integers(0, 9))
def test_every_row_is_in_exactly_one_part(labels, seed):
    parts = stratified_split(labels, [0.8, 0.1, 0.1], seed)
    assert sorted(place for part in parts for place in part) == list(range(len(labels)))
    assert all(part == sorted(part) for part in parts)


@given(labels=labels, seed=st.integers(0, 9))
def test_every_class_is_divided_by_the_shares(labels, seed):
    _, validation, test = stratified_split(labels, [0.8, 0.1, 0.1], seed)
    for part in (validation, test):
        counts = Counter(labels[place] for place in part)
        # Whole rows: a part is within half a row of its share.
        assert all(abs(counts[name] - 0.1 * number) <= 0.5 for name, number in Counter(labels).items())


def test_a_class_of_one_row_stays_in_the_first_part():
    first, _ = stratified_split(["a"] * 30 + ["rare"], [0.9, 0.1], 0)
    assert 30 in first


def test_the_seed_alone_decides():
    labels = list("ab" * 40)
    assert stratified_split(labels, [0.9, 0.1], 1) == stratified_split(labels, [0.9, 0.1], 1)
    assert stratified_split(labels, [0.9, 0.1], 1) != stratified_split(labels, [0.9, 0.1], 2)
