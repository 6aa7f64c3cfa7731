"""Files and command lines by chance: what was written is what is read, or one sentence says why not.

A fixed budget here; `make fuzz` tries more, by the variable FUZZ: so many examples of each, always others.
"""

import csv
import io
import json
import os
import shlex

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from identiformer.train.cli import main
from identiformer.train.composing import compose_config, override
from identiformer.train.data.reading import Columns, column_names, read_file
from identiformer.train.errors import UserError, visible

EXAMPLES = int(os.environ.get("FUZZ", 0))
SLOW = {"deadline": None, "suppress_health_check": list(HealthCheck)}

letters = st.characters(codec="utf-8", exclude_categories=["Cs"])
cells = st.one_of(
    st.text(letters, max_size=12),
    st.sampled_from(
        ["", "NA", "nan", "None", "null", "007", "1.0", "-1", "True", ' "', "a,b", "a\tb", "a\r\nb", " x "]
    ),
)
names = st.text(letters, min_size=1, max_size=6).filter(lambda name: name.strip("\ufeff") == name)


def budget(examples):
    """So many examples, always the same, or as many others as FUZZ says."""
    number = max(EXAMPLES, 1) if EXAMPLES else examples
    return settings(max_examples=number, derandomize=not EXAMPLES, database=None, **SLOW)


@st.composite
def tables(draw):
    """Columns, with the names of those that are read, and rows of cells."""
    header = draw(st.lists(names, min_size=2, max_size=4, unique=True))
    row = st.tuples(*[cells] * len(header))
    text, label = draw(st.permutations(header))[:2]
    return header, draw(st.lists(row, min_size=1, max_size=5)), Columns((text,), label)


def as_csv(header, rows, separator, quoting, ending):
    file = io.StringIO()
    writer = csv.writer(file, delimiter=separator, quoting=quoting, lineterminator=ending)
    writer.writerows([header, *rows])
    return file.getvalue()


def expected(header, rows, columns):
    """What is read of a table: cells as they are, an empty one as None."""
    text, label = header.index(columns.text[0]), header.index(columns.label)
    return [([row[text] or None], row[label] or None) for row in rows]


def read(path, columns):
    rows = read_file(path, columns)
    assert rows["row"][:] == list(range(1, len(rows) + 1))
    return [(row["text"], row["label"]) for row in rows]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@budget(35)
@given(
    tables(),
    st.sampled_from([",", ";", "\t", "|", "é"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"]),
)
def test_a_separated_file_is_read_as_it_was_written(folder, table, separator, quoting, ending, encoding):
    header, rows, columns = table
    path = folder / "a.csv"
    path.write_bytes(as_csv(header, rows, separator, quoting, ending).encode(encoding))
    named = encoding.removesuffix("-sig")
    columns = Columns(columns.text, columns.label, named, separator)
    assert read(path, columns) == expected(header, rows, columns)
    assert column_names(path, columns) == header


@budget(20)
@given(tables(), st.booleans())
def test_jsonl_and_parquet_are_read_as_they_were_written(folder, table, ascii_only):
    header, rows, columns = table
    lines = [json.dumps(dict(zip(header, row, strict=True)), ensure_ascii=ascii_only) + "\n" for row in rows]
    (folder / "a.jsonl").write_text("".join(lines), encoding="utf-8")
    pd.DataFrame(rows, columns=header).to_parquet(folder / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        assert read(folder / name, columns) == expected(header, rows, columns)
        assert column_names(folder / name, columns) == header


@budget(40)
@given(
    st.one_of(st.binary(max_size=60), st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass"))),
    st.sampled_from(["a.csv", "a.tsv", "a.jsonl", "a.parquet"]),
    st.booleans(),
)
def test_any_bytes_are_read_or_refused_in_a_sentence(folder, content, name, with_header):
    (folder / name).write_bytes((b"text,label\n" if with_header else b"") + content)
    sentence = ""
    try:
        assert len(read_file(folder / name, Columns()))
    except UserError as error:
        sentence = str(error)
    assert name in sentence or not sentence
    assert visible(sentence) == sentence.strip()
    assert len(sentence) < 400


@budget(5)
@given(st.text(letters, max_size=30))
def test_a_typed_text_arrives_as_it_is(text):
    assert compose_config(["data=files", override("data.train", text)]).data.train == text


VALUES = st.one_of(
    st.integers(-3, 3).map(str),
    st.floats(-2, 2).map(str),
    st.sampled_from(["null", "true", "nan", "inf", "[]", "{}", "x", "''", "1e400", "${seed}", "${x}", "a b", "'"]),
    st.text(letters, max_size=4),
)
KEYS = """seed model.num_heads model.d_model model.num_layers model.dropout model.d_key optimizer.lr layer scheduler
    data.batch_size data.max_length data.vocab_size data.tokenizer data.split_seed data.text data.label data.encoding
    data data.separator data.empty_texts data.unknown_labels class_weight scheduler.warmup callbacks.monitor.rows model
    trainer.max_epochs trainer.precision"""
OPTIONS = st.lists(st.tuples(st.sampled_from(["", "+", "++", "~"]), st.sampled_from(KEYS.split()), VALUES), max_size=3)


@budget(10)
@given(OPTIONS)
def test_options_are_taken_or_refused_in_a_sentence(reviews, options):
    typed = [f"{sign}{key}={value}" for sign, key, value in options]
    _ends_well(["data", str(reviews), "--text", "review", "--label", "verdict", *typed])


WORDS = """--data --text --label --encoding --separator --row --layer --token --json --quiet --attribution --probes
    --sample --output --drop-unknown --margin 0 1 -1 2 review verdict latin-1 , no/x.json x.csv FILE"""
TYPED = st.text(letters, max_size=5).filter(lambda word: not word.startswith("--h"))
ARGUMENTS = st.sampled_from(WORDS.split()) | TYPED


@budget(30)
@given(st.sampled_from(["evaluate", "predict", "analyze"]), st.lists(ARGUMENTS, max_size=5))
def test_any_words_after_a_command_end_well(finished, reviews, folder, command, words):
    os.chdir(folder)
    (folder / "few.csv").write_text("review,verdict\nfine,good\ndull,bad\n")
    words = [str(folder / "few.csv") if word == "FILE" else word for word in words]
    _ends_well([command, str(finished.folder), *words])


def _ends_well(argv):
    """0, or 2 and one sentence on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", out)
        patch.setattr("sys.stderr", err)
        code = main(argv)
    said = err.getvalue()
    assert code in (0, 2), (shlex.join(argv), said)
    assert code == 0 or (said.startswith("Error: ") and said.count("\n") == 1), (shlex.join(argv), said)
    assert said.strip("\n") == visible(said.strip("\n"))
