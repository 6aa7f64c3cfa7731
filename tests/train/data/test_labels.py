import pytest
from datasets import Dataset
from identiformer.train.data.labels import encode_labels, label_names
from identiformer.train.errors import UserError


def test_numbers_are_sorted_as_numbers_and_words_as_words():
    assert label_names(["10", "2", "7", "2"]) == ["2", "7", "10"]
    assert label_names(["b", "10", "2"]) == ["10", "2", "b"]
    assert label_names(["1.0", "-1"]) == ["-1", "1.0"]


@pytest.mark.parametrize(("labels", "said"), [(["x", "x"], "one label, 'x'"), ([], "no label")])
def test_fewer_than_two_classes_are_refused(labels, said):
    with pytest.raises(UserError, match=said):
        label_names(labels)


def test_one_map_serves_every_split():
    dataset, left_out = encode_labels(Dataset.from_dict({"label": ["b", "a"]}), ["a", "b"], "validation")
    assert dataset["labels"][:] == [1, 0]
    assert left_out == 0


def test_an_unknown_label_is_named_with_its_count():
    dataset = Dataset.from_dict({"label": ["a", "goood", "goood"]})
    with pytest.raises(UserError, match=r"label 'goood' in 2 rows.*Did you mean 'good'"):
        encode_labels(dataset, ["a", "good"], "test")


def test_unknown_labels_are_dropped_on_request():
    dataset, left_out = encode_labels(Dataset.from_dict({"label": ["a", "z", "b"]}), ["a", "b"], "test", "drop")
    assert dataset["label"][:] == ["a", "b"]
    assert left_out == 1
