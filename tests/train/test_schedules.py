import pytest
import torch
from hydra.utils import instantiate
from identiformer.train.composing import compose_config


def _rates(scheduler, total_steps):
    cfg = compose_config([f"scheduler={scheduler}", "optimizer.lr=0.5"])
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = instantiate(cfg.scheduler)(optimizer, total_steps=total_steps)
    rates = []
    for _ in range(total_steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize("scheduler", ["one_cycle", "linear", "cosine", "constant"])
@pytest.mark.parametrize("total_steps", [1, 2, 3, 9, 10, 11, 40])
def test_rates_rise_to_the_optimizers_within_the_warm_up_and_never_again(scheduler, total_steps):
    rates = _rates(scheduler, total_steps)
    assert max(rates) <= 0.5 + 1e-9
    if total_steps == 40:
        top = rates.index(max(rates))
        assert max(rates) == pytest.approx(0.5, rel=0.02)  # one_cycle peaks between two steps
        assert 3 <= top <= 4
        assert rates[: top + 1] == sorted(rates[: top + 1])
        assert rates[top:] == sorted(rates[top:], reverse=True)


@pytest.mark.parametrize(("scheduler", "end"), [("one_cycle", 0), ("linear", 0), ("cosine", 0), ("constant", 0.5)])
def test_rates_end_where_their_name_says(scheduler, end):
    assert _rates(scheduler, 200)[-1] == pytest.approx(end, abs=0.01)
