"""Learning rates by step, for any number of steps."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR
from transformers import get_scheduler


def one_cycle(optimizer: Optimizer, total_steps: int, *, warmup: float) -> LRScheduler:
    """Cosine up to each group's own rate over the share `warmup` of the steps, then a cosine down to nearly 0."""
    # OneCycleLR divides by its rising steps less one, and by its falling ones: it needs two and one of them.
    steps = max(total_steps, 3)
    rates = [group["lr"] for group in optimizer.param_groups]
    return OneCycleLR(optimizer, max_lr=rates, total_steps=steps, pct_start=max(warmup, 2 / steps))


def warm_up(optimizer: Optimizer, total_steps: int, *, then: str, warmup: float) -> LRScheduler:
    """Linear up to the optimizer's rate over the share `warmup` of the steps, then as transformers' `then` says."""
    return get_scheduler(then, optimizer, num_warmup_steps=round(warmup * total_steps), num_training_steps=total_steps)
