"""Nothing that a file holds is run, nothing that people typed is markup, and a run writes into its folder only."""

import json
import pickle
import shutil

import pandas as pd
import pytest
import torch
from identiformer.train.cli import main
from identiformer.train.report.literal import literal
from rich.console import Console

HOSTILE = ["[red]x[/red]", "[/x]", "[link=file:///]y", ":smile:", "\x1b[2J", "two\nlines", "<script>", "$^$"]


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.fixture
def sprung(tmp_path):
    """The file that a trap leaves behind."""
    return tmp_path / "sprung"


@pytest.fixture
def traps(sprung, tmp_path, finished):
    """Model folders and files that hold a trap where weights, words or rows are looked for."""
    content = pickle.dumps(Trap(sprung))
    torch.save(Trap(sprung), tmp_path / "zipped.pt")
    names = ("pytorch_model.bin", "model.safetensors", "best.ckpt", "tf_model.h5", "vocab.pkl", "training_args.bin")
    for name in names:
        folder = shutil.copytree(finished.folder / "model", tmp_path / name.replace(".", "_"))
        (folder / "model.safetensors").unlink()
        (folder / name).write_bytes(content)
    zipped = shutil.copytree(tmp_path / "pytorch_model_bin", tmp_path / "zipped")
    shutil.copy(tmp_path / "zipped.pt", zipped / "pytorch_model.bin")
    for name in ("data.pkl", "data.csv", "data.parquet", "data.jsonl"):
        (tmp_path / name).write_bytes(content)
    return [*(tmp_path / name.replace(".", "_") for name in names), zipped]


def test_the_trap_is_one(sprung):
    pickle.loads(pickle.dumps(Trap(sprung))).close()
    assert sprung.exists()


def test_nothing_is_unpickled(traps, sprung, tmp_path, finished, reviews, capsys):
    commands = [["predict", str(folder), "fine"] for folder in traps]
    commands += [["analyze", str(folder), "fine"] for folder in traps]
    files = [tmp_path / name for name in ("data.pkl", "data.csv", "data.parquet", "data.jsonl", "zipped.pt")]
    commands += [["predict", str(finished.folder), "--data", str(file)] for file in files]
    commands += [["predict", str(file), "fine"] for file in files]
    train = ["train", "--data", str(reviews), "--text", "review", "--label", "verdict", "--quiet", f"runs={tmp_path}"]
    commands += [
        [*train, "model=pretrained", f"model.name={traps[0]}"],
        [*train, f"data.tokenizer={tmp_path / 'data.pkl'}"],
    ]
    for command in commands:
        assert main(command) == 2, command
        said = capsys.readouterr().err
        assert said.startswith("Error: ")
        assert said.count("\n") == 1
    assert not sprung.exists()


@pytest.mark.parametrize("kind", ["bert", "unheard-of"])
def test_code_beside_a_model_is_not_run(kind, finished, sprung, reviews, tmp_path, monkeypatch, capsys):
    folder = shutil.copytree(finished.folder / "model", tmp_path / "model")
    code = f"open({str(sprung)!r}, 'w')\nclass Config: pass\nclass Model: pass\nclass Tokenizer: pass\n"
    (folder / "code.py").write_text(code)
    config = json.loads((folder / "config.json").read_text()) | {"model_type": kind}
    models = dict.fromkeys(("AutoModel", "AutoModelForSequenceClassification"), "code.Model")
    config["auto_map"] = {"AutoConfig": "code.Config", "AutoTokenizer": ["code.Tokenizer", None], **models}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text()) | {"auto_map": config["auto_map"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer | {"tokenizer_class": "Tokenizer"}))
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # nobody is asked, either
    train = ["train", "--data", str(reviews), "--text", "review", "--label", "verdict", "--quiet", f"runs={tmp_path}"]
    for command in (
        ["predict", str(folder), "fine"],
        ["analyze", str(folder), "fine"],
        [*train, "model=pretrained", f"model.name={folder}"],
        [*train, f"data.tokenizer={folder}", "trainer.max_epochs=0", "callbacks.monitor.texts=0"],
    ):
        main(command)
        assert "Traceback" not in capsys.readouterr().err
    assert not sprung.exists()


@pytest.mark.parametrize("text", HOSTILE)
def test_a_typed_text_is_shown_as_it_is(text):
    console = Console(force_terminal=True, width=200, color_system="truecolor")
    with console.capture() as capture:
        console.print(literal(text), highlight=False)
    assert capture.get() == text.replace("\x1b", "\\x1b").replace("\n", "\\n") + "\n"


@pytest.fixture(scope="module")
def hostile_run(small, tmp_path_factory):
    """The folder of a run whose texts, labels, columns, file and name are hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    path = folder / "[red]rows[", "<b>.csv"
    path[0].mkdir()
    texts = [f"{HOSTILE[n % len(HOSTILE)]} {'fine' if n % 2 else 'dull'}" for n in range(48)]
    labels = ["[bold]</script>" if n % 2 else "[/]\x1b[31m" for n in range(48)]
    pd.DataFrame({"[b]text": texts, "<i>": labels}).to_csv(path[0] / path[1], index=False)
    runs = folder / "[red]runs"
    overrides = [*small, "logger=tensorboard", "trainer.max_epochs=1", f"runs='{runs}'", "name='[red]$x'"]
    options = ["--data", str(path[0] / path[1]), "--text", "[b]text", "--label", "<i>"]
    assert main(["train", *overrides, *options]) == 0
    (run,) = (runs / "[red]$x").iterdir()
    return run, path[0] / path[1]


def test_a_hostile_run_is_used_like_any_other(hostile_run, tmp_path, capsys):
    run, file = map(str, hostile_run)
    pictures = [str(tmp_path / name) for name in ("heads.png", "page.html")]
    for command in (
        ["predict", run, HOSTILE[0], "[bold]"],
        ["evaluate", run, "--data", file],
        ["analyze", run, HOSTILE[-1] + " $^$ fine", "--token", "1", "--png", pictures[0]],
        ["report", run, HOSTILE[0], "-o", pictures[1]],
        ["compare", run, "--markdown", str(tmp_path / "table.md")],
    ):
        assert main(command) == 0, command
        shown = capsys.readouterr()
        assert "\x1b" not in shown.out
        assert shown.err == ""


def test_labels_of_a_hostile_file_are_told_as_they_are(hostile_run, capsys):
    main(["data", str(hostile_run[1]), "--text", "[b]text", "--label", "<i>"])
    shown = capsys.readouterr().out
    assert "[bold]</script>" in shown
    assert r"[/]\x1b[31m" in shown


def test_nothing_that_was_typed_is_text_on_tensorboard(hostile_run):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run, _ = hostile_run
    events = accumulator.EventAccumulator(str(run / "tensorboard"), {"images": 0}).Reload()
    assert events.Tags()["images"]
    assert not events.Tags()["tensors"]  # where texts and HTML would be
    for file in (run / "tensorboard").iterdir():
        content = file.read_bytes()
        assert not any(typed.encode() in content for typed in ("[red]", "script", "[b]text", "[bold]"))


SETTINGS = ["callbacks.monitor.folder", "callbacks.checkpoint.filename", "logger.csv.version", "name", "runs"]


@pytest.mark.parametrize("key", SETTINGS)
@pytest.mark.parametrize("value", ["ABROAD/x", "../x"])
def test_a_config_cannot_have_a_run_write_elsewhere_but_a_command_can(
    key, value, reviews, small, tmp_path, monkeypatch, capsys
):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    value = value.replace("ABROAD", str(tmp_path / "abroad"))
    *groups, last = key.split(".")
    content = f"{last}: {value}\n"
    for group in reversed(groups):
        content = f"{group}:\n" + "".join(f"  {line}\n" for line in content.splitlines())
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "theirs.yaml").write_text("# @package _global_\n" + content)
    train = ["train", "--data", str(reviews), "--text", "review", "--label", "verdict", *small, "trainer.max_epochs=0"]
    assert main([*train, f"hydra.searchpath=[file://{tmp_path / 'conf'}]", "experiment=theirs"]) == 2
    assert f"{key} is {value!r}, outside of the run's folder: type it" in capsys.readouterr().err
    assert not list((tmp_path / "here").iterdir())
    if key == "name":
        assert main([*train, f"{key}={value}"]) == 0
        assert (tmp_path / "abroad").exists() or (tmp_path / "here" / "x").exists()
