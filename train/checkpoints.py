"""Checkpoints that are whole or not there."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from .disk import whole_file


class WholeCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its target and renames it, so that no fault loses the last whole one."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write the whole checkpoint to disk before it takes the place of `path`."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as part, part.open("wb") as file:  # by path torch would hide why it cannot write
            torch.save(checkpoint, file)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read plain types and tensors; nothing is ever unpickled."""
        return super().load_checkpoint(path, map_location, weights_only=True)
