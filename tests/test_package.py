import importlib.metadata

import identiformer


def test_version_is_the_installed_one():
    assert identiformer.__version__ == importlib.metadata.version("identiformer")
