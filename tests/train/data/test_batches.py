import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from identiformer.train.data.batches import LengthBatchSampler, PositionedLoader
from identiformer.train.data.tokenizer import make_tokenizer


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=300),
    batch_size=st.integers(1, 17),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_every_text_is_in_exactly_one_batch(lengths, batch_size, shuffle, epoch):
    sampler = LengthBatchSampler(np.array(lengths), batch_size, shuffle=shuffle)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    assert sorted(place for batch in batches for place in batch) == list(range(len(lengths)))
    assert all(len(batch) <= batch_size for batch in batches)


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=100),
    batch_size=st.integers(1, 7),
    processes=st.integers(1, 4),
    shuffle=st.booleans(),
)
def test_processes_share_the_batches_of_one(lengths, batch_size, processes, shuffle):
    one = LengthBatchSampler(np.array(lengths), batch_size * processes, shuffle=shuffle)
    samplers = [
        LengthBatchSampler(np.array(lengths), batch_size, shuffle=shuffle, process=process, processes=processes)
        for process in range(processes)
    ]
    parts = [list(sampler) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(one)] * processes
    for number, batch in enumerate(one):
        shared = [part[number] for sampler, part in zip(samplers, parts, strict=True) if number not in sampler.idle]
        assert sorted(place for part in shared for place in part) == sorted(batch)
        assert all(part[number] and len(part[number]) <= batch_size for part in parts)


def test_the_order_depends_on_seed_and_epoch_alone():
    lengths = np.random.default_rng(0).integers(1, 50, 200)
    first, second = (LengthBatchSampler(lengths, 8, shuffle=True, seed=3) for _ in range(2))
    assert list(first) == list(second)
    second.set_epoch(1)
    assert list(first) != list(second)
    assert list(first) != list(LengthBatchSampler(lengths, 8, shuffle=True, seed=4))


def test_batches_hold_texts_of_similar_length():
    lengths = np.random.default_rng(0).integers(1, 200, 4000)
    batches = list(LengthBatchSampler(lengths, 32, shuffle=True))
    padded = sum(len(batch) * lengths[batch].max() for batch in batches)
    assert padded / lengths.sum() < 1.1


@pytest.fixture
def make_loader():
    tokenizer = make_tokenizer("word", ["a b c"] * 2, 10, 9)
    texts = [["a"] * (1 + number % 5) for number in range(23)]
    ids = [tokenizer(text, is_split_into_words=True).input_ids for text in texts]
    columns = {"row": range(23), "labels": [0] * 23, "input_ids": ids, "attention_mask": [[1] * len(i) for i in ids]}

    def make(**place):
        sampler = LengthBatchSampler(np.array([len(i) for i in ids]), 4, shuffle=True, seed=1, **place)
        return PositionedLoader(Dataset.from_dict(columns), sampler, tokenizer)

    return make


def test_a_row_for_a_process_without_one_does_not_count(make_loader):
    """23 rows for 11 processes, 4 each: the last has nothing in the batch of 23."""
    loaders = [make_loader(process=process, processes=11) for process in range(11)]
    rows = [[batch["row"].tolist() for batch in loader] for loader in loaders]
    assert [len(batches) for batches in rows] == [1] * 11
    assert sorted(row for batches in rows for row in batches[0]) == list(range(23))
    (batch,) = make_loader(process=30, processes=31)
    assert (batch["row"].tolist(), batch["labels"].tolist()) == ([0], [-100])
    assert sorted(make_loader(process=30, processes=31).row_numbers()) == list(range(23))


def test_batches_are_padded_to_their_longest_text(make_loader):
    for batch in make_loader():
        assert batch["attention_mask"].sum(1).max() == batch["input_ids"].shape[1]
        assert (batch["input_ids"][batch["attention_mask"] == 0] == 0).all()


def test_a_loader_goes_on_where_another_stood(make_loader):
    straight, stopped, resumed = make_loader(), make_loader(), make_loader()
    straight.batch_sampler.set_epoch(2)
    stopped.batch_sampler.set_epoch(2)
    whole = [batch["row"].tolist() for batch in straight]
    batches = iter(stopped)
    seen = [next(batches)["row"].tolist() for _ in range(3)]
    resumed.load_state_dict(stopped.state_dict())
    assert seen + [batch["row"].tolist() for batch in resumed] == whole
    assert len(list(resumed)) == len(whole)  # the next epoch is whole again
