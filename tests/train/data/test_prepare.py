import csv

import pytest
from identiformer.train.composing import compose_config
from identiformer.train.data.prepare import prepare
from identiformer.train.errors import UserError


def _data(*overrides):
    return prepare(compose_config(overrides).data)


def _write(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["text", "label"], *rows])
    return f"data.train='{path}'"


@pytest.fixture
def rows():
    return [[f"word{number % 4} word{number % 3}", "xy"[number % 2]] for number in range(40)]


def test_the_embedded_data_set_is_whole():
    data = _data()
    assert {split: report.rows for split, report in data.reports.items()} == {
        "train": 7541,
        "validation": 1000,
        "test": 1500,
    }
    assert data.label_names == ["negative", "positive"]
    assert len(data.tokenizer) <= 8000


def test_one_file_is_split_80_10_10_and_keeps_its_row_numbers(tmp_path, rows):
    data = _data("data=files", _write(tmp_path / "a.csv", rows))
    numbers = {split: dataset["row"][:] for split, dataset in data.splits.items()}
    assert {split: len(part) for split, part in numbers.items()} == {"train": 32, "validation": 4, "test": 4}
    assert sorted(row for part in numbers.values() for row in part) == list(range(1, 41))
    assert all(data.label_names[label] == rows[row - 1][1] for row, label in _labels(data, "train"))


def _labels(data, split):
    return zip(data.splits[split]["row"], data.splits[split]["labels"], strict=True)


def test_validation_comes_from_train_when_only_test_is_given(tmp_path, rows):
    test = _write(tmp_path / "b.csv", rows[:6]).replace("data.train", "data.test")
    data = _data("data=files", _write(tmp_path / "a.csv", rows), test)
    assert [data.reports[split].rows for split in ("train", "validation", "test")] == [36, 4, 6]


def test_the_seed_of_the_run_does_not_move_the_split(tmp_path, rows):
    file = _write(tmp_path / "a.csv", rows)
    assert _data("data=files", file, "seed=1").content_hash == _data("data=files", file, "seed=2").content_hash


def test_rows_without_text_or_label_are_dropped_and_counted(tmp_path, rows):
    file = _write(tmp_path / "a.csv", [["", "x"], [" \u200b", "y"], ["fine", ""], *rows])
    assert _data("data=files", file).files["train"].dropped == {"empty text": 2, "no label": 1}
    assert _data("data=files", file, "data.empty_texts=keep").files["train"].dropped == {"no label": 1}


def test_cut_texts_are_counted_and_the_longest_is_that_before_cutting(tmp_path, rows):
    data = _data("data=files", _write(tmp_path / "a.csv", [*rows, ["word1 " * 30, "x"]]), "data.max_length=20")
    report = data.reports["train"]
    assert (report.cut, report.longest, report.lengths.max()) == (1, 31, 20)  # [CLS] counted
    assert max(map(len, data.splits["train"]["input_ids"])) == 20


def test_columns_of_text_are_joined_by_the_separator_token(tmp_path, rows):
    data = _data("data=files", _write(tmp_path / "a.csv", rows), "data.text=[text,label]")
    tokens = data.tokenizer.convert_ids_to_tokens(data.splits["train"]["input_ids"][0])
    assert tokens[0] == "[CLS]"
    assert tokens[3] == "[SEP]"


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["data=folder", "data.folder=nowhere"], "There is no folder 'nowhere'"),
        (["data=files"], "nothing to train on"),
        (["data.batch_size=0"], "batch_size is 0"),
        (["data.unknown_labels=ignore"], "choose error or drop"),
    ],
)
def test_bad_settings_are_refused(overrides, sentence):
    with pytest.raises(UserError, match=sentence):
        _data(*overrides)


def test_too_few_rows_for_a_split_are_refused(tmp_path):
    with pytest.raises(UserError, match="2 usable rows, too few for a validation split"):
        _data("data=files", _write(tmp_path / "a.csv", [["a", "x"], ["b", "y"]]))


def test_a_folder_is_read_by_the_names_of_its_files(tmp_path, rows):
    _write(tmp_path / "train.csv", rows)
    _write(tmp_path / "test.csv", rows[:4])
    (tmp_path / "notes.txt").write_text("not data")
    data = _data("data=folder", f"data.folder='{tmp_path}'")
    assert [data.reports[split].rows for split in ("train", "validation", "test")] == [36, 4, 4]
