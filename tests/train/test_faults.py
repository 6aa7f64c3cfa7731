"""Bad and odd inputs through the command line: what each ends in. None ends in a traceback."""

# ruff: noqa: E501 (a case is a line)

import gzip
import json
import shlex
import shutil
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from identiformer.train.cli import main

HEAD = "text,label\n"
ROWS = "".join(f"word{n % 4} film,{('good', 'bad')[n % 2]}\n" for n in range(24))
GOOD = HEAD + ROWS
COLUMNS = "--text text --label label"
SIZES = "model.d_model=24 model.num_heads=3 data.max_length=12 trainer.max_epochs=1 trainer.accelerator=cpu --quiet"
TRAIN = f"train --data a.csv {SIZES}"


def jsonl(*rows):
    """Rows of objects, one a line, after those of `GOOD`."""
    good = [{"text": f"word{n % 4} film", "label": ("good", "bad")[n % 2]} for n in range(24)]
    return "".join(json.dumps(row) + "\n" for row in [*good, *rows])


# ---- Files: name, content, and what every command that reads the file says of it. -----------------------------------
REFUSED = [
    ("latin-1", "a.csv", (GOOD + "café,good\n").encode("latin-1"), "a.csv: byte 387 cannot be read as utf-8;"),
    ("latin-1 in JSONL", "a.jsonl", '{"text": "é"}'.encode("latin-1"), "a.jsonl: byte 11 cannot be read as utf-8;"),
    ("UTF-16", "a.csv", GOOD.encode("utf-16"), "give the file's encoding by --encoding, perhaps utf-16."),
    ("noise", "a.csv", bytes(range(256)), "a.csv: byte 129 cannot be read as utf-8;"),
    ("a comma at the end of every line", "a.csv", HEAD + "fine,good,\n", "line 2: 3 fields where the header has 2"),
    ("too few fields", "a.csv", HEAD + "fine,good\nonly\n", "a.csv, line 3: 1 fields where the header has 2"),
    ("too many fields", "a.csv", GOOD + "a,b,good\n", "a.csv, line 26: 3 fields where the header has 2"),
    ("after a quoted newline", "a.csv", HEAD + '"a\nb",good\nc,d,e\n', "a.csv, line 4: 3 fields"),
    ("an open quote", "a.csv", HEAD + '"open,good\n' + ROWS, "a.csv, line 2: unexpected end of data; mend the quotes"),
    ("letters after a quote", "a.csv", HEAD + '"a"b,good\n', "a.csv, line 2: ',' expected after '\"'; mend the quotes"),
    ("a doubled column", "a.csv", "text,text,label\na,b,good\n", "a.csv: 2 columns are called 'text'; rename"),
    (
        "a column in capitals",
        "a.csv",
        "TEXT,label\na,good\n",
        "no column 'text' among 'TEXT', 'label'. Did you mean 'T",
    ),
    ("spaces around names", "a.csv", " text , label \na,good\n", "among ' text ', ' label '. Did you mean ' text '?"),
    ("a misspelt column", "a.csv", "txet,label\na,good\n", "no column 'text' among 'txet', 'label'. Did you mean"),
    (
        "many columns",
        "a.csv",
        ",".join(map(str, range(999))) + "\n",
        "'0', '1', '2', '3', '4', '5', '6', '7', '8', '9'",
    ),
    ("another separator", "a.csv", GOOD.replace(",", ";"), "Is ',' what separates the columns?"),
    ("commas in a TSV", "a.tsv", GOOD, r"Is '\t' what separates the columns?"),
    ("an empty file", "a.csv", "", "a.csv is empty: its first line must name the columns."),
    ("blank lines", "a.csv", "\n\n\n", "a.csv is empty"),
    ("a header alone", "a.csv", HEAD, "a.csv has no rows."),
    ("an empty JSONL", "a.jsonl", "\n", "a.jsonl has no rows."),
    ("a spreadsheet", "a.xlsx", b"PK\x03\x04rest", "a.xlsx is a spreadsheet or an archive: save it as CSV."),
    ("an old spreadsheet", "a.csv", b"\xd0\xcf\x11\xe0rest", "a.csv is a spreadsheet: save it as CSV."),
    ("a compressed file", "a.csv.gz", gzip.compress(GOOD.encode()), "a.csv.gz is compressed: unpack it."),
    ("text called parquet", "a.parquet", GOOD, "a.parquet: Parquet magic bytes not found"),
    ("parquet called CSV", "a.csv", b"PAR1\x15\x04", "a.csv is parquet: let its name end in .parquet."),
    ("CSV called JSONL", "a.jsonl", GOOD, "a.jsonl, line 1: Expecting value at character 1; each line must be"),
    ("JSON in one list", "a.json", '[{"text": "a"}]', "a.json, line 1: each line must be a JSON object, as"),
    ("a broken line", "a.jsonl", jsonl() + '{"text": \n', "a.jsonl, line 25: Expecting value"),
    ("deep brackets", "a.jsonl", "[" * 100_000, "a.jsonl, line 1: maximum recursion depth"),
    ("a name twice", "a.jsonl", '{"text": "a", "text": "b", "label": 1}', "line 1: a name is there twice"),
    ("a missing name", "a.jsonl", '{"txt": "a", "label": 1}', "line 1: there is no 'text'. Did you mean 'txt'?"),
    (
        "half a letter",
        "a.jsonl",
        jsonl() + r'{"text": "\ud83d", "label": "good"}',
        r"row 25: '\ud83d' is half a letter",
    ),
    ("a list for a text", "a.jsonl", jsonl({"text": ["a"], "label": "good"}), "row 25: ['a'] stands where a string"),
    ("an object for a text", "a.jsonl", jsonl({"text": {"a": 1}, "label": "good"}), "row 25: {'a': 1} stands where"),
]


def entries(file, model, turn=0):
    """A command line that trains on a file, one that evaluates, one that predicts, and one that analyzes, by turns."""
    read = f"{shlex.quote(str(model))} --data {file} --text text --quiet"
    trains = f"train --data {file} {COLUMNS} {SIZES}", f"data {file} {COLUMNS}"
    analyzes = (
        f"analyze {read}",
        f"analyze {read} --tokens",
        f"analyze {read} --attribution",
        f"report {read} -o x.html",
    )
    evaluates = f"evaluate {shlex.quote(str(model))} --data {file} {COLUMNS}"
    return [trains[turn % 2], evaluates, f"predict {read}", analyzes[turn % 4]]


@pytest.mark.parametrize("turn", range(len(REFUSED)), ids=[case[0] for case in REFUSED])
def test_a_file_is_refused_alike_by_every_command(turn, finished, tmp_path, monkeypatch, capsys):
    _, file, content, sentence = REFUSED[turn]
    monkeypatch.chdir(tmp_path)
    write(tmp_path / file, content)
    for command in entries(file, finished.folder, turn):
        refused(command, sentence, capsys)
    assert [path.name for path in tmp_path.iterdir()] == [file]


# ---- Everything else: files beside a.csv, which is `GOOD`, the command line, the exit code, and what is said. --------
class Case(NamedTuple):
    name: str
    command: str
    code: int
    said: str
    files: dict = {}  # noqa: RUF012


DATA = f"data a.csv {COLUMNS}"
PREDICT = "predict MODEL"
EVALUATE = f"evaluate MODEL --data b.csv {COLUMNS}"
CASES = [
    # Odd files that are read.
    Case("a byte order mark", DATA, 0, "train: 24 rows read", {"a.csv": GOOD.encode("utf-8-sig")}),
    Case("one in JSONL", f"data b.jsonl {COLUMNS}", 0, "24 rows read", {"b.jsonl": jsonl().encode("utf-8-sig")}),
    Case("latin-1, named", f"{DATA} --encoding latin-1", 0, "25 rows", {"a.csv": (GOOD + "é,bad\n").encode("latin-1")}),
    Case("UTF-16, named", f"{DATA} --encoding utf-16", 0, "24 rows read", {"a.csv": GOOD.encode("utf-16")}),
    Case("a NUL byte", DATA, 0, "25 rows read", {"a.csv": GOOD + "a\0b,bad\n"}),
    Case("line ends of a Mac", DATA, 0, "24 rows read", {"a.csv": GOOD.replace("\n", "\r")}),
    Case("line ends of Windows", DATA, 0, "24 rows read", {"a.csv": GOOD.replace("\n", "\r\n")}),
    Case("a quoted newline", DATA, 0, "train: 25 rows read", {"a.csv": GOOD + '"two\nlines",bad\n'}),
    Case("a blank line", DATA, 0, "train: 25 rows read", {"a.csv": GOOD + "\nfine,bad\n\n"}),
    Case("a column without name", DATA, 0, "24 rows read", {"a.csv": GOOD.replace("\n", ",\n")}),
    Case("no ending", f"data b {COLUMNS}", 0, "train: 24 rows read", {"b": GOOD}),
    Case("an ending in capitals", f"data B.TSV {COLUMNS}", 0, "24 rows read", {"B.TSV": GOOD.replace(",", "\t")}),
    Case("a tab, typed", rf"{DATA} --separator '\t'", 0, "24 rows read", {"a.csv": GOOD.replace(",", "\t")}),
    Case("words that look missing", DATA, 0, "NA │ 9 │ 1", {"a.csv": GOOD + "null,NA\nNone,nan\n" * 11}),
    Case("007", DATA, 0, "007 │ 9 │ 1", {"a.csv": GOOD + "007,007\n" * 11}),
    Case("a million words", f"{DATA} data.max_length=64", 0, "1,000,001 │", {"a.csv": GOOD + "a " * 10**6 + ",bad\n"}),
    # Texts and labels.
    Case("empty texts", DATA, 0, "27 rows read, 3 dropped (empty text)", {"a.csv": GOOD + ",bad\n  ,bad\n\1\2,bad\n"}),
    Case("kept on request", f"{DATA} data.empty_texts=keep", 0, "train: 25 rows read 9 tokens", {"a.csv": GOOD + ",bad\n"}),
    Case("missing labels", DATA, 0, "26 rows read, 2 dropped (no label)", {"a.csv": GOOD + "fine,\ndull,\n"}),
    Case("no label at all", DATA, 2, "train split has no row with a text and a label; a", {"a.csv": HEAD + "fine,\n"}),
    Case("no text at all", DATA, 2, "The train split has no row with a text", {"a.csv": HEAD + " ,bad\n ,good\n"}),
    Case("no label column", DATA, 2, "'label' among 'text'. A file without labels can", {"a.csv": "text\nfine\n"}),
    Case("one class", DATA, 2, "The train split has one label, 'x': a classifier needs", {"a.csv": HEAD + "a,x\n" * 20}),
    Case("one row", DATA, 2, "The file has 1 usable row, too few for a", {"a.csv": HEAD + "a,good\n"}),
    Case("a class of one row", DATA, 0, "rare │ 1 │ 0 │ 0", {"a.csv": GOOD + "fine,rare\n"}),
    Case("minus one", DATA, 0, "-1 │ 9 │ 1 │ 1", {"a.csv": HEAD + "a,-1\nb,2\nc,10\n" * 11}),
    Case("numbers by size", DATA, 0, "-1 │ 9 │ 1 │ 1 │ │ 2 │ 9", {"a.csv": HEAD + "a,10\nb,2\nc,-1\n" * 11}),
    Case("True and False", f"data b.jsonl {COLUMNS}", 0, "True │ 1", {"b.jsonl": jsonl({"text": "a", "label": True})}),
    Case("1.0 and 1", f"data b.jsonl {COLUMNS}", 0, "Labels '1' and '1.0' differ", {"b.jsonl": jsonl(*({"text": "a", "label": label} for label in (1, 1.0)))}),
    Case("labels that look alike", DATA, 0, "' good' and 'GOOD' and 'good' differ", {"a.csv": GOOD + "a, good\nb,GOOD\n"}),
    Case("columns that look alike", DATA, 0, "columns 'text' and 'Text' differ", {"a.csv": "text,Text,label\na,b,good\nc,d,bad\n" * 1 + "a,b,good\nc,d,bad\n" * 9}),
    Case("one-class validation", f"{TRAIN} --validation b.csv", 0, "", {"b.csv": HEAD + "fine,good\nwarm,good\n"}),
    Case("empty validation", f"{TRAIN} --validation b.csv", 2, "The validation split has no row", {"b.csv": HEAD + ",bad\n"}),
    Case("an unknown label", f"{TRAIN} --test b.csv", 2, "The test split has the label 'goood' in 1 row, and the train split has not. Did you mean 'good'?", {"b.csv": HEAD + "a,goood\n"}),
    Case("all unknown, dropped", f"{TRAIN} --test b.csv data.unknown_labels=drop", 2, "The test split has no row whose label the train", {"b.csv": HEAD + "a,z\n"}),
    Case("unknown to the model", EVALUATE, 2, "b.csv has the label 'z' in 1 row", {"b.csv": GOOD + "a,z\n"}),
    Case("dropped on request", f"{EVALUATE} --drop-unknown", 0, "1 dropped (unknown label)", {"b.csv": GOOD + "a,z\n"}),
    Case("all unknown to it", f"{EVALUATE} --drop-unknown", 2, "it knows bad, good", {"b.csv": HEAD + "a,z\n"}),
    Case("alike at evaluation", f"{EVALUATE} --drop-unknown", 0, "Labels 'good' and 'GOOD'", {"b.csv": GOOD + "a,GOOD\n"}),
    Case("labels for texts", "evaluate MODEL --data a.csv --text label --label text", 2, "has the label 'word0 film' in 6 rows"),
    Case("predict drops no row", "predict MODEL --text text --data b.csv", 0, "│ 4 │", {"b.csv": 'text\n\n""\n \nfine\n'}),
    # Files that are not there, or are no files.
    Case("a near name", "data reviws.csv", 2, "There is no file 'reviws.csv'. Did you mean 'reviews.csv'?", {"reviews.csv": GOOD}),
    Case("a folder", f"{PREDICT} --data folder.csv", 2, "'folder.csv' is a folder: give a file in it.", {"folder.csv/x": ""}),
    Case("an empty name", f"{PREDICT} --data ''", 2, "The name of a file is empty."),
    Case("an empty name to train on", f"train --data '' {SIZES}", 2, "The name of a file is empty."),
    Case("an empty name to validate on", f"{TRAIN} --validation ''", 2, "The name of a file is empty."),
    Case("a device", f"{PREDICT} --data /dev/null", 2, "'/dev/null' is no file that can be read twice"),
    Case("an unreadable file", f"{PREDICT} --data /proc/self/mem", 2, "'/proc/self/mem' cannot be read: Input/output"),
    Case("a long name", f"{PREDICT} --data {'x' * 999}", 2, "cannot be read: File name too long."),
    Case("no folder", "data folder data.folder=nowhere", 2, "There is no folder 'nowhere'."),
    Case("two files of a split", "data d", 2, "are both a train split: move one away", {"d/train.csv": GOOD, "d/train.tsv": GOOD}),
    # Names of files.
    *(
        Case(f"a name with {name}", f"data {shlex.quote(name)} {COLUMNS}", 0, "24 rows read", {name: GOOD})
        for name in ("a b.csv", "a[1].csv", "a,b=c.csv", "*.csv", "é😀.csv", "a::b.csv", "${x}.csv", "'\".csv", "a\\.csv")
    ),
    # Options.
    Case("an encoding that is none", f"{DATA} --encoding utf-9", 2, "There is no encoding 'utf-9'"),
    Case("an empty encoding", f"{PREDICT} --data a.csv --encoding ''", 2, "There is no encoding ''"),
    Case("another encoding", f"{DATA} --encoding utf-16", 2, "cannot be read as utf-16; give the file's encoding"),
    Case("a long separator", f"{DATA} --separator ab", 2, "--separator 'ab': give one character"),
    Case("two sources", f"{TRAIN} data=ag_news", 2, "--data a.csv and data=ag_news are two sources of data"),
    Case("a test file without data", f"train --test a.csv {SIZES}", 2, "data.embedded and data.test do not go together"),
    Case("a file of another group", f"train data.train=a.csv {SIZES}", 2, "data.embedded and data.train do not go"),
    Case("no text column", f"{TRAIN} data.text=[]", 2, "data.text names no column: give one by --text."),
    Case("a text for a list", f"{TRAIN} data.text=text", 2, "data.text takes a list, as data.text=[a,b]."),
    Case("a misspelt option", "train --dta a.csv", 2, "There is no option '--dta'. Did you mean '--data'?"),
    Case("a misspelt key", f"{TRAIN} model.d_kye=3", 2, "There is no option 'model.d_kye'. Did you mean 'model.d_key'?"),
    Case("a misspelt layer", f"{TRAIN} layer=identifable", 2, "Did you mean 'identifiable'?"),
    Case("a misspelt command", "trian", 2, "No such command 'trian'. Did you mean 'train'?"),
    Case("a misspelt flag", f"{PREDICT} a --outptu x", 2, "No such option: --outptu"),
    Case("an option without value", "train --data", 2, "Option '--data' requires an argument."),
    Case("a missing option", "evaluate MODEL", 2, "Missing option '--data'."),
    Case("a word for a number", f"{PREDICT.replace('predict', 'analyze')} a --row x", 2, "Invalid value for '--row'"),
    Case("an open quote on the line", f"""{TRAIN} "name='" """, 2, "name=' cannot be read: put quotes around its value"),
    Case("a negative seed", f"{TRAIN} seed=-1", 2, "seed is -1: give a whole number from 0 to 4294967295."),
    Case("no epochs", f"{TRAIN} trainer.max_epochs=null", 2, "trainer.max_epochs is null: give a whole number of at"),
    Case("endless epochs", f"{TRAIN} trainer.max_epochs=-1", 2, "trainer.max_epochs is -1: give a whole number of at"),
    Case("no batches", f"{TRAIN} trainer.limit_val_batches=0", 2, "trainer.limit_val_batches is 0: give a number above 0."),
    Case("no rate", f"{TRAIN} optimizer.lr=-1", 2, "optimizer.lr is -1: give a number of at least 0."),
    Case("NaN for a rate", f"{TRAIN} optimizer.lr=nan", 2, "optimizer.lr is nan: give a number of at least 0."),
    Case("a rate in words", f"{TRAIN} optimizer.lr=fast", 2, "optimizer.lr is 'fast': give a number of at least 0."),
    Case("dropout of NaN", f"{TRAIN} model.dropout=nan", 2, "model.dropout is nan: give a number from 0 to 1."),
    Case("a long warm-up", f"{TRAIN} scheduler.warmup=2", 2, "scheduler.warmup is 2: give a number from 0 to 1."),
    Case("no heads", f"{TRAIN} model.num_heads=0", 2, "num_heads is 0: it must be at least 1."),
    Case("too long for memory", f"{TRAIN} data.max_length=1000000000000", 2, "you tried to allocate"),
    Case("negative workers", f"{TRAIN} data.workers=-1", 2, "data.workers is -1: it must be at least 0."),
    Case("another optimizer's option", f"{TRAIN} +optimizer.momentum=1", 2, "unexpected keyword argument 'momentum'"),
    Case("odd betas", f"{TRAIN} +optimizer.betas=[0.9,2]", 2, "Invalid beta parameter at index 1: 2"),
    Case("a score that is not logged", f"{TRAIN} callbacks.checkpoint.monitor=val/acuracy", 2, "'val/acuracy'"),
    Case("another that is not", f"{TRAIN} callbacks=early_stopping callbacks.early_stopping.monitor=x", 2, "metric `x` which is not available"),
    Case("a part of what was left out", f"{TRAIN} model=pretrained", 2, "model.d_model is no option together with the others"),
    # Output.
    Case("no folder to write to", f"{PREDICT} a --output no/x.csv", 2, "no/x.csv cannot be written: there is no folder 'no'."),
    Case("a folder to write", f"{PREDICT} a --output d.csv", 2, "d.csv cannot be written: it is a folder", {"d.csv/x": ""}),
    Case("an output in capitals", f"{PREDICT} fine --output X.CSV", 0, ""),
    Case("an output of no name", f"{PREDICT} a --output ''", 2, "--output '': give a name that ends in .csv or .jsonl."),
    Case("a place for no file", f"{PREDICT} a --output /proc/x.csv", 2, "/proc/x.csv cannot be written: No such file"),
    Case("no folder for a picture", "analyze MODEL a --tokens --png no/x.png", 2, "no/x.png cannot be written: there is"),
    Case("a folder for JSON", "analyze MODEL a --json d.json", 2, "d.json cannot be written: it is a folder", {"d.json/x": ""}),
    Case("no folder for a page", "report MODEL -o no/x.html", 2, "no/x.html cannot be written: there is no folder 'no'."),
    Case("runs in a file", f"{TRAIN} runs=a.csv", 2, "No folder can be made in 'a.csv/default': Not a directory."),
    # Typed texts.
    Case("markup", f"{PREDICT} '[red]x[/x]'", 0, "[red]x[/x]"),
    Case("a smiley's name", f"{PREDICT} :smile:", 0, ":smile:"),
    Case("a command to the terminal", f"{PREDICT} '\x1b[31mred'", 0, r"\x1b[31mred"),
    Case("an empty text", f"{PREDICT} ''", 0, "predicted"),
    Case("bytes that are no letters", f"{PREDICT} 'x\udcff'", 2, r"The texts, row 1: '\udcff' is half a letter"),
    Case("texts in threes", f"{PREDICT} a b c --text x --text y", 2, "3 texts were given; the model reads 2 columns"),
    Case("neither", PREDICT, 2, "Give either texts or a file by --data."),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_an_input_ends_as_it_should(case, finished, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, content in ({"a.csv": GOOD} | case.files).items():
        write(tmp_path / name, content)
    command = case.command.replace("MODEL", shlex.quote(str(finished.folder)))
    if case.code:
        refused(command, case.said, capsys)
    else:
        assert main(shlex.split(command)) == 0
        assert case.said in plain(capsys.readouterr().out)


def test_there_are_enough():
    assert len(REFUSED) + len(CASES) >= 80
    assert len({case[0] for case in [*REFUSED, *CASES]}) == len(REFUSED) + len(CASES)


# ---- Odd cells of tables: every format reads the same. ---------------------------------------------------------------
def test_parquet_cells_are_what_they_would_be_in_a_csv(tmp_path, monkeypatch, capsys, finished):
    monkeypatch.chdir(tmp_path)
    labels = pa.array([1.0, 2.0, float("nan"), None, 1.0] * 9)
    texts = pa.array(["fine", "dull", "warm", "cold", ""] * 9).dictionary_encode()
    pq.write_table(pa.table({"a.b": texts, "label": labels}), "a.parquet")
    assert main(shlex.split("data a.parquet --text a.b --label label")) == 0
    shown = plain(capsys.readouterr().out)
    assert "45 rows read, 18 dropped (no label), 9 dropped (empty text)" in shown
    assert "│ 1.0 │ 7 │ 1 │ 1 │ │ 2.0 │ 7 │ 1 │ 1 │" in shown
    pq.write_table(pa.table({"text": [b"fine"] * 9, "label": [1] * 9}), "b.parquet")
    for command in entries("b.parquet", finished.folder):
        refused(command, "row 1: b'fine' stands where a string or a number is needed", capsys)


# ---- Models: what is done to a good one, and what is said of it. -----------------------------------------------------
def without(name):
    return lambda folder: (folder / name).unlink()


def holding(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def changed(name, **facts):
    return lambda folder: (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | facts))


MODELS = [
    ("no config", without("config.json"), "is neither the folder of a finished run or of a saved model"),
    ("no weights", without("model.safetensors"), "cannot be loaded: Error no file named model.safetensors"),
    ("no tokenizer", without("tokenizer.json"), "cannot be loaded: Couldn't instantiate the backend tokenizer"),
    ("broken config", holding("config.json", b"{"), "is not a valid JSON file"),
    ("broken weights", holding("model.safetensors", b"abc"), "cannot be loaded: Error while deserializing header"),
    ("a foreign tokenizer", holding("tokenizer.json", b'{"a": 1}'), "cannot be loaded: 'added_tokens' is missing"),
    ("broken facts", holding("identiformer.json", b"\xff"), "does not say which columns the model was trained on"),
    ("facts without columns", changed("identiformer.json", text=[]), "does not say which columns"),
    ("another width", changed("config.json", d_model=30), "in the file and (2, 30) by config.json"),
    ("fewer words", changed("config.json", vocab_size=5), "in the file and (5, 24) by config.json"),
    ("more layers", changed("config.json", num_layers=2), "it has no encoder.layers.1.attention.key.bias; train it"),
    ("a misspelt size", changed("config.json", d_kye=3), "has no argument 'd_kye'. Did you mean 'd_key'?"),
    ("a size in words", changed("config.json", d_model="24"), "Field 'd_model' expected int, got str"),
    ("another kind", changed("config.json", model_type="nonsense"), "does not recognize this architecture"),
    ("classes of one name", changed("config.json", id2label={"0": "x", "1": "x"}), "not numbered from 0, each by"),
    ("classes from 5", changed("config.json", id2label={"5": "x", "6": "y"}), "not numbered from 0, each by its name"),
    ("another padding", changed("config.json", pad_token_id=2), "the tokenizer pads with token 0, the model with 2."),
    ("another vocabulary", changed("config.json", vocabulary_hash="0"), "put the model's own tokenizer beside it"),
]


@pytest.mark.parametrize(("change", "sentence"), [case[1:] for case in MODELS], ids=[case[0] for case in MODELS])
def test_a_model_that_is_not_whole_is_refused(change, sentence, finished, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.csv", GOOD)
    change(shutil.copytree(finished.folder / "model", tmp_path / "model"))
    for command in (f"{PREDICT} a", f"evaluate MODEL --data a.csv {COLUMNS}"):
        refused(command.replace("MODEL", "model"), sentence, capsys)


@pytest.mark.parametrize("name", ["", "nowhere", "/", "a.csv", "x" * 999, "..", "http://x/y", "a\\b"])
def test_a_model_that_is_not_there_is_refused(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.csv", GOOD)
    refused(f"predict {shlex.quote(name)} a", "is neither the folder of a finished run or of a saved model", capsys)


def test_weights_that_are_not_finite_are_named(finished, tmp_path, capsys):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(finished.folder / "model", tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["classifier.weight"][0, 0] = float("nan")
    weights["encoder.layers.0.attention.query.bias"][0] = float("inf")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refused(f"predict {folder} a", "query.bias holds a number that is not finite: train it anew.", capsys)
    refused(f"analyze {folder} a", "Row 1, layer 0, head 0: the queries hold a number that is not finite", capsys)


def test_a_layer_that_the_config_does_not_know_is_not_dropped_in_silence(finished, tmp_path, capsys):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(finished.folder / "model", tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layers.1.norm1.weight"] = weights["encoder.layers.0.norm1.weight"].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refused(f"predict {folder} a", "the file has encoder.layers.1.norm1.weight, and a model of its config.json", capsys)


def write(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def plain(shown):
    return " ".join(shown.split())


def refused(command, sentence, capsys):
    """The command line ends with code 2 and one line on stderr that holds the sentence; nothing is on stdout."""
    assert main(shlex.split(command)) == 2, command
    said = capsys.readouterr()
    assert sentence in said.err, (command, said.err)
    assert said.err.startswith("Error: ")
    assert said.err.count("\n") == 1
    assert said.out == ""
