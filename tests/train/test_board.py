import pytest
import torch
from identiformer.train import train
from identiformer.train.metrics import MEASURES
from identiformer.train.report.plots import DPI, PANEL

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


@pytest.fixture(scope="module")
def board(reviews, small, tmp_path_factory):
    """A run that shows its second epoch on TensorBoard, and what stands there."""
    folder = tmp_path_factory.mktemp("runs")
    overrides = ["logger=tensorboard", "callbacks.board.epochs=[1]", *small, f"runs={folder}"]
    result = train(overrides, data=str(reviews), text=["review"], label="verdict")
    events = accumulator.EventAccumulator(str(result.folder / "tensorboard"), {"images": 0, "histograms": 0})
    return result, events.Reload()


def test_chosen_epochs_have_pictures_of_a_few_texts(board):
    _, events = board
    rows = [3, 12]  # the first of the validation split
    assert events.Tags()["images"] == [f"attention/row_{row}/layer_0" for row in rows]
    for tag in events.Tags()["images"]:
        (picture,) = events.Images(tag)
        assert picture.step == 20  # ten batches an epoch
        panel = DPI * (PANEL[0] + 0.4)
        assert picture.width // panel == 3  # heads, beside each other
        assert picture.height // panel == 2  # raw and effective


def test_chosen_epochs_have_a_histogram_of_every_measure(board):
    result, events = board
    names = {f"layer_0/{name}" for name in MEASURES}
    assert set(events.Tags()["histograms"]) == names
    (nullity,) = events.Histograms("layer_0/identifiability/nullity")
    assert nullity.histogram_value.num == 15  # 5 texts, 3 heads
    mean = nullity.histogram_value.sum / nullity.histogram_value.num
    assert mean == pytest.approx(result.summary["val/identifiability/nullity"], rel=1e-6)


def test_showing_changes_nothing_of_the_training(board, reviews, small, tmp_path):
    result, _ = board
    plain = train([*small, f"runs={tmp_path}"], data=str(reviews), text=["review"], label="verdict")
    for name, tensor in plain.model.state_dict().items():
        assert torch.equal(tensor, result.model.state_dict()[name])
