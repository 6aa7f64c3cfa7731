import json
import os

import pytest
from identiformer.train.errors import UserError
from identiformer.train.report.runs import group_runs, read_runs


def test_a_run_is_read_with_the_interval_of_its_accuracy(make_run):
    (run,) = read_runs([make_run()])
    assert run.summary["test/accuracy_interval"] == pytest.approx([0.7391, 0.8495], abs=1e-4)  # Wilson's of 160 of 200
    assert run.figures["test/accuracy"] == 0.8
    assert not {"seed", "format_version", "preset", "test/accuracy_interval"} & run.figures.keys()


def test_a_sweep_stands_for_its_finished_runs(make_run, tmp_path):
    folder = tmp_path / "sweep"
    (folder / "points").mkdir(parents=True)
    (folder / "sweep.json").write_text("{}")
    with pytest.raises(UserError, match="is a sweep without a finished run"):
        read_runs([folder])
    runs = [make_run(seed=seed).rename(folder / f"run{seed}") for seed in range(2)]
    records = [{"overrides": [], "run": run.name} for run in runs] + [{"overrides": [], "error": "no"}]
    for number, record in enumerate(records):
        (folder / "points" / f"{number:04}.json").write_text(json.dumps(record))
    assert [run.folder for run in read_runs([folder, runs[0]])] == runs  # each once


@pytest.mark.parametrize("missing", ["summary.json", "config.yaml"])
def test_a_folder_that_is_no_run_is_refused(make_run, missing):
    folder = make_run()
    (folder / missing).unlink()
    with pytest.raises(UserError, match=f"not the folder of a finished run or of a sweep: it has no {missing}"):
        read_runs([folder])


def test_runs_that_differ_only_by_seed_are_a_group(make_run):
    folders = [make_run(preset, seed) for preset in ("standard", "identifiable") for seed in (2, 0)]
    groups = group_runs(read_runs(folders))
    assert [(group.name, group.seeds) for group in groups] == [("standard", [0, 2]), ("identifiable", [0, 2])]


def test_a_group_is_called_by_what_tells_it_apart(make_run):
    sizes = [make_run("identifiable", d_key=d_key, d_feedforward=4 * d_key) for d_key in (8, 16)]
    names = [group.name for group in group_runs(read_runs([*sizes, make_run("standard", d_key=7)]))]
    assert names == ["identifiable d_key=8", "identifiable d_key=16", "standard"]


def test_of_two_runs_of_the_same_seed_the_newest_counts(make_run):
    folders = [make_run(measure=measure) for measure in (0.1, 0.2)]
    for age, folder in enumerate(folders):
        os.utime(folder / "summary.json", (100 - age, 100 - age))
    (group,) = group_runs(read_runs(folders))
    assert [run.folder for run in group.runs] == folders[:1]


def test_means_and_deviations_are_over_seeds(make_run):
    (group,) = group_runs(read_runs([make_run(seed=seed, measure=seed) for seed in (1, 2, 6)]))
    assert group.figures.loc["val/identifiability/slack"].tolist() == pytest.approx([3, 7**0.5])
    assert group.right.shape == (3, 200)
