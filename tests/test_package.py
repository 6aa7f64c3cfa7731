import importlib.metadata
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import identiformer
import pytest

ROOT = Path(identiformer.__file__).parent
SOURCES = ("models", "train", "conf")

in_checkout = pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="needs a checkout, not an installation")


def _packages_in_tree():
    folders = [folder for source in SOURCES for folder in [ROOT / source, *(ROOT / source).rglob("*")]]
    found = [folder for folder in folders if (folder / "__init__.py").exists()]
    return {"identiformer"} | {".".join(["identiformer", *folder.relative_to(ROOT).parts]) for folder in found}


def test_version_is_the_installed_one():
    assert identiformer.__version__ == importlib.metadata.version("identiformer")


@in_checkout
def test_packages_are_those_of_the_tree():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(settings["tool"]["setuptools"]["packages"]) == _packages_in_tree()


@in_checkout
def test_every_folder_with_source_is_a_package():
    for source in SOURCES[:2]:
        for path in (ROOT / source).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-2000:]
    return folder


@in_checkout
def test_every_module_imports_from_a_built_wheel(wheel, tmp_path):
    (path,) = wheel.glob("*.whl")
    zipfile.ZipFile(path).extractall(tmp_path)
    modules = [
        ".".join(file.relative_to(tmp_path).with_suffix("").parts)
        for file in (tmp_path / "identiformer").rglob("*.py")
        if file.name != "__main__.py"
    ]
    assert "identiformer.models.layers.attention" in modules
    code = f"import importlib, sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    code += (
        f"for name in {modules!r}: assert importlib.import_module(name).__file__.startswith({str(tmp_path)!r}), name"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


@in_checkout
def test_the_wheel_holds_data_and_configs_and_the_sdist_the_tests(wheel):
    (path,) = wheel.glob("*.whl")
    names = zipfile.ZipFile(path).namelist()
    for name in (
        "train/data/movie_snippets/train.parquet",
        "train/data/movie_snippets/LICENSE",
        "conf/layer/standard.yaml",
        "train/report/explorer.html",
        "train/report/explorer.css",
        "train/report/explorer.js",
    ):
        assert f"identiformer/{name}" in names
    assert not any("tests/" in name or "checkpoints/" in name for name in names)
    (sdist,) = wheel.glob("*.tar.gz")
    listed = subprocess.run(["tar", "-tzf", str(sdist)], capture_output=True, text=True).stdout
    assert "tests/conftest.py" in listed
    assert "constraints.txt" in listed
