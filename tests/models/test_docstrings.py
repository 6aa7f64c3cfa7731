"""Examples in docstrings."""

import doctest

import pytest
from identiformer.models import recording
from identiformer.models.surgery import swapping


@pytest.mark.parametrize("module", [recording, swapping])
def test_examples_run(module):
    result = doctest.testmod(module)
    assert result.attempted > 3
    assert result.failed == 0
