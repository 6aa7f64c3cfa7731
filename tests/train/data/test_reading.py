import json

import pandas as pd
import pytest
from identiformer.train.data.reading import Columns, read_file
from identiformer.train.errors import UserError

COLUMNS = Columns(("text",), "label")


def _write(folder, content, name="file.csv", encoding="utf-8"):
    path = folder / name
    path.write_bytes(content.encode(encoding))
    return path


def _cells(dataset):
    return [(row["text"], row["label"]) for row in dataset]


def test_cells_arrive_exactly_as_typed(tmp_path):
    path = _write(tmp_path, 'label,text\n007,"a ""quoted"", text"\nNA,None\nnull," spaced "\n1.0,"two\nlines"\n')
    rows = read_file(path, COLUMNS)
    assert rows["row"][:] == [1, 2, 3, 4]
    assert _cells(rows) == [
        (['a "quoted", text'], "007"),
        (["None"], "NA"),
        ([" spaced "], "null"),
        (["two\nlines"], "1.0"),
    ]


def test_only_an_empty_cell_is_missing(tmp_path):
    rows = read_file(_write(tmp_path, "text,label\n,x\nfine,\n"), COLUMNS)
    assert _cells(rows) == [([None], "x"), (["fine"], None)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path, encoding):
    assert len(read_file(_write(tmp_path, "text,label\ncafé,x\n", encoding=encoding), COLUMNS)) == 1


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_another_encoding_is_read_when_it_is_named(tmp_path, encoding):
    path = _write(tmp_path, "text,label\ncafé,x\n", encoding=encoding)
    assert _cells(read_file(path, Columns(encoding=encoding))) == [(["café"], "x")]


def test_all_formats_give_the_same_rows(tmp_path):
    table = pd.DataFrame({"text": ["one, two", "a\tb", "ünï"], "label": ["1", "0", "x"]})
    table.to_csv(tmp_path / "a.csv", index=False)
    table.to_csv(tmp_path / "a.tsv", index=False, sep="\t")
    table.to_parquet(tmp_path / "a.parquet")
    table.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    read = [_cells(read_file(tmp_path / f"a.{ending}", COLUMNS)) for ending in ("csv", "tsv", "parquet", "jsonl")]
    assert all(cells == read[0] for cells in read[1:])
    assert read[0] == [([text], label) for text, label in table.itertuples(index=False)]


def test_several_text_columns_stay_apart(tmp_path):
    path = _write(tmp_path, "a,b,c\nx,y,z\n")
    assert _cells(read_file(path, Columns(("c", "a"), "b"))) == [(["z", "x"], "y")]


def test_a_file_replaced_under_its_name_is_read_anew(tmp_path):
    read_file(_write(tmp_path, "text,label\nold,x\n"), COLUMNS)
    assert read_file(_write(tmp_path, "text,label\nnew,x\n"), COLUMNS)["text"][:] == [["new"]]


@pytest.mark.parametrize("name", ["a b.csv", "a[1].csv", "a=1,b*.csv", "é::x.csv"])
def test_odd_file_names_are_only_names(tmp_path, name):
    assert len(read_file(_write(tmp_path, "text,label\nfine,x\n", name=name), COLUMNS)) == 1


def test_a_text_of_a_million_characters_is_whole(tmp_path):
    path = _write(tmp_path, f"text,label\n{'word ' * 200_000},x\n")
    assert len(read_file(path, COLUMNS)[0]["text"][0]) == 1_000_000


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("txt,label\nfine,x\n", "no column 'text' among 'txt', 'label'. Did you mean 'txt'?"),
        ("text;label\nfine;x\n", "give the separator by --separator"),
        ("text,label\nfine,x,\n", "line 2: 3 fields where the header has 2"),
        ("text,label\nfine,x\nonly\n", "line 3: 1 fields where the header has 2"),
        ('text,label\n"open,x\n', "line 2: unexpected end of data"),
        ("text,text,label\na,b,x\n", "2 columns are called 'text'"),
        ("", "file.csv is empty: its first line must name the columns"),
    ],
)
def test_a_broken_csv_is_refused_with_its_place(tmp_path, content, sentence):
    with pytest.raises(UserError) as error:
        read_file(_write(tmp_path, content), COLUMNS)
    assert sentence in str(error.value)
    assert "file.csv" in str(error.value)


def test_an_unreadable_encoding_is_refused_with_file_and_byte(tmp_path):
    with pytest.raises(UserError, match=r"file\.csv: byte 15 cannot be read as utf-8.*--encoding"):
        read_file(_write(tmp_path, "text,label\ncafé,x\n", encoding="latin-1"), COLUMNS)


def test_an_unknown_encoding_is_refused(tmp_path):
    with pytest.raises(UserError, match="no encoding 'utf-9'"):
        read_file(_write(tmp_path, "text,label\na,x\n"), Columns(encoding="utf-9"))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="There is no file"):
        read_file(tmp_path / "nothing.csv", COLUMNS)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [("{", "line 2"), ("[1]", "must be a JSON object"), (json.dumps({"txt": "a", "label": "x"}), "no 'text'")],
)
def test_a_broken_jsonl_line_is_refused_with_its_number(tmp_path, line, sentence):
    path = _write(tmp_path, json.dumps({"text": "a", "label": "x"}) + "\n" + line + "\n", name="file.jsonl")
    with pytest.raises(UserError) as error:
        read_file(path, COLUMNS)
    assert sentence in str(error.value)
