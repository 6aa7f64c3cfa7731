import pytest
import torch
from asserting import assert_close, randomise
from identiformer.models.layers import FeedForward

FORMULAS = {
    "gelu": lambda x: x * torch.special.ndtr(x),
    "relu": lambda x: x.clamp(min=0),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "tanh": torch.tanh,
}


@pytest.mark.parametrize("activation", sorted(FORMULAS))
@torch.no_grad()
def test_output_is_outer_of_activation_of_inner(activation):
    part = randomise(FeedForward(d_model=12, d_feedforward=17, activation=activation, dropout=0.0)).double()
    hidden = torch.randn(2, 5, 12, dtype=torch.float64)
    inner = FORMULAS[activation](hidden @ part.inner.weight.T + part.inner.bias)
    assert_close(part(hidden), inner @ part.outer.weight.T + part.outer.bias, 1e-13)


def test_biases_start_at_zero_and_weights_do_not():
    part = FeedForward(d_model=12, d_feedforward=17, activation="gelu", dropout=0.0)
    for linear in (part.inner, part.outer):
        assert (linear.bias == 0).all()
        assert (linear.weight != 0).all()
