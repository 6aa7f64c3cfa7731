"""How much of each hidden token is its own input's, added up over a validation."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from ...models import hidden_token_attribution
from ...models.identifiability import context_profile

PROBES = 16  # per token: a standard error of some 5 % of a token's share
NAME = "attribution/own_share"


class OwnShares(Metric):
    """Own-token shares of hidden token attribution: their means over all layers and by layer."""

    full_state_update = False
    rows: list[Tensor]

    def __init__(self):
        super().__init__()
        self.add_state("rows", [], dist_reduce_fx="cat")
        self.reset()

    def reset(self) -> None:
        """Forget everything. One empty block stays, so that a process that saw no text can take part in a sync."""
        super().reset()
        self.rows = [torch.empty(0, 2, dtype=torch.float64, device=self.device)]

    def update(self, model: nn.Module, batch: Mapping[str, Tensor], seed: int = 0) -> None:
        """Add every token of a batch of texts, `input_ids` and `attention_mask`, each *(texts, tokens)*."""
        keep = batch["attention_mask"].bool()
        found = hidden_token_attribution(model, batch, PROBES, seed=seed)
        for layer, contributions in enumerate(found.contributions):
            own = context_profile(contributions, keep).own_share[keep.cpu()]
            self.rows.append(torch.stack([torch.full_like(own, layer), own], -1).to(self.device))

    def compute(self) -> dict[str, float]:
        """The mean over all tokens and layers, and by `layer_<number>/` of each layer."""
        rows = torch.cat(self.rows) if isinstance(self.rows, list) else self.rows
        if not len(rows):
            return {}
        layers = {int(layer): rows[rows[:, 0] == layer, 1].mean().item() for layer in rows[:, 0].unique()}
        return {NAME: rows[:, 1].mean().item()} | {f"layer_{layer}/{NAME}": mean for layer, mean in layers.items()}
