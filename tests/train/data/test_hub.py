import pytest
from datasets import ClassLabel, Dataset, Features, Value
from identiformer.train.composing import compose_config
from identiformer.train.data.prepare import prepare
from identiformer.train.errors import UserError

# Columns, label column and classes as the hub's pages give them.
SHAPES = {
    "ag_news": (["text"], "label", 4),
    "imdb": (["text"], "label", 2),
    "sst2": (["sentence"], "label", 2),
    "snli": (["premise", "hypothesis"], "label", 3),
    "trec": (["text"], "coarse_label", 6),
    "dbpedia_14": (["title", "content"], "label", 14),
    "yelp_polarity": (["text"], "label", 2),
    "yelp_full": (["text"], "label", 5),
    "yahoo_answers": (["question_title", "question_content", "best_answer"], "topic", 10),
    "amazon_polarity": (["title", "content"], "label", 2),
    "amazon_full": (["review_title", "review_text"], "class_index", 5),
    "sogou_news": (["title", "content"], "label", 5),
}


def _make_repository(folder, name, config_name, splits):
    """A local folder of the shape of a data set's repository: parquet files, and a card that names the config."""
    columns, label, classes = SHAPES[name]
    named = ClassLabel(names=[f"class {number}" for number in range(classes)])
    features = Features({column: Value("string") for column in columns} | {label: named})
    for split in splits:
        rows = {column: [f"{column} word{number % 7}" for number in range(12 * classes)] for column in columns}
        labels = [number % classes for number in range(12 * classes)]
        if name == "snli":
            labels[0] = labels[5] = -1
        data = Dataset.from_dict(rows | {label: labels}, features=features)
        data.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    files = "".join(f"  - {{split: {split}, path: data/{split}-*}}\n" for split in splits)
    card = f"---\nconfigs:\n- config_name: {config_name or 'default'}\n  data_files:\n{files}---\n"
    (folder / "README.md").write_text(card)


@pytest.mark.parametrize("name", SHAPES)
def test_a_named_data_set_is_read_from_a_folder_of_its_shape(name, tmp_path):
    hub = compose_config([f"data={name}"]).data.hub
    _make_repository(tmp_path, name, hub.name, set(hub.splits.values()))
    data = prepare(compose_config([f"data={name}", f"data.hub.path='{tmp_path}'"]).data)
    columns, _, classes = SHAPES[name]
    assert data.label_names == [f"class {number}" for number in range(classes)] or classes > 10
    assert set(data.reports) == {"train", "validation", "test"}
    tokens = data.tokenizer.convert_ids_to_tokens(data.splits["train"]["input_ids"][0])
    assert tokens.count("[SEP]") == len(columns) - 1
    dropped = {"no label": 2} if name == "snli" else {}
    assert data.files["train"].dropped == dropped


def test_every_file_says_that_it_was_not_tried_against_the_hub():
    from importlib import resources

    for name in SHAPES:
        text = (resources.files("identiformer.conf") / "data" / f"{name}.yaml").read_text()
        assert "not tried against the hub" in text


def test_a_data_set_that_is_not_there_is_refused_with_how_to_get_it():
    with pytest.raises(UserError, match=r"'fancyzhx/ag_news' is neither in the cache.*data.hub.path=FOLDER"):
        prepare(compose_config(["data=ag_news"]).data)


def test_a_column_that_is_not_there_is_refused_with_the_near_match(tmp_path):
    _make_repository(tmp_path, "ag_news", None, ["train", "test"])
    with pytest.raises(UserError, match=r"no column 'txt' among text, label. Did you mean 'text'"):
        prepare(compose_config(["data=ag_news", f"data.hub.path='{tmp_path}'", "data.text=[txt]"]).data)
