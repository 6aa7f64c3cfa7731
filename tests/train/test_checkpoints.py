import pickle

import pytest
import torch
from identiformer.train.checkpoints import WholeCheckpointIO


def test_a_checkpoint_comes_back(tmp_path):
    path = tmp_path / "folder" / "best.ckpt"
    WholeCheckpointIO().save_checkpoint({"weights": torch.arange(3), "epoch": 2}, path)
    loaded = WholeCheckpointIO().load_checkpoint(path)
    assert loaded["epoch"] == 2
    assert loaded["weights"].tolist() == [0, 1, 2]
    assert [file.name for file in path.parent.iterdir()] == ["best.ckpt"]


def test_a_fault_while_writing_keeps_the_last_whole_checkpoint(tmp_path):
    path = tmp_path / "best.ckpt"
    WholeCheckpointIO().save_checkpoint({"epoch": 1}, path)
    with pytest.raises(pickle.PicklingError):
        WholeCheckpointIO().save_checkpoint({"epoch": 2, "broken": _Broken()}, path)
    assert WholeCheckpointIO().load_checkpoint(path) == {"epoch": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["best.ckpt"]


class _Broken:
    def __reduce__(self):
        raise pickle.PicklingError("as when a disk is full")


def test_nothing_is_unpickled_even_when_asked_to(tmp_path):
    torch.save({"command": _Runs()}, tmp_path / "evil.ckpt")
    with pytest.raises(pickle.UnpicklingError):
        WholeCheckpointIO().load_checkpoint(tmp_path / "evil.ckpt", weights_only=False)


class _Runs:
    def __reduce__(self):
        return (print, ("this must not run",))
