"""Fixtures of the tests under models/. They import our package late: pytest's plugin for shapes must come first."""

from functools import partial

import pytest
import torch
from hypothesis import settings

settings.register_profile("models", deadline=None, max_examples=30)
settings.load_profile("models")
torch.set_num_threads(1)  # processes of pytest-xdist share the cores

# The presets at d_model 12 and 3 heads, with a key size that nothing else has.
PRESET_SIZES = {
    "standard": {},
    "small_key": {"d_key": 2},
    "identifiable": {"d_key": 7, "d_value": 12, "merge_heads": "sum"},
    "shared_value": {"d_key": 7, "d_value": 12, "num_value_heads": 1, "merge_heads": "mean"},
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(params=sorted(PRESET_SIZES))
def preset(request) -> str:
    """The name of each preset in turn."""
    return request.param


@pytest.fixture
def keep() -> torch.Tensor:
    """Two texts of five positions: one with a gap and padding at the end, one whole."""
    return torch.tensor([[True, True, False, True, False], [True] * 5])


@pytest.fixture
def config_of():
    """A function of a preset's name and options that gives a small config."""
    from identiformer.models import IdentiformerConfig

    def make(preset: str, **options):
        sizes = {"vocab_size": 29, "d_model": 12, "num_heads": 3, "num_layers": 2, "d_feedforward": 17}
        return IdentiformerConfig(**{**sizes, "max_length": 16, **PRESET_SIZES[preset], **options})

    return make


@pytest.fixture
def make_config(config_of, preset):
    """The same for each preset in turn: a function of options alone."""
    return partial(config_of, preset)
