"""Which room may import which, read from the source."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for room in ("models", "train") for path in (ROOT / room).rglob("*.py"))
FORBIDDEN = {"lightning", "hydra", "omegaconf", "torchmetrics"}

# What each room may import besides itself. Rooms are the first part of a path under models/, or "train".
ALLOWED = {
    "functional": set(),
    "identifiability": {"functional"},
    "layers": {"functional"},
    "configuration": {"functional", "layers"},
    "modeling": {"functional", "layers", "configuration"},
    "adapters": {"functional", "layers", "modeling", "configuration"},
}
TOP = {"recording", "attribution", "surgery"}
ALLOWED |= {room: {*ALLOWED, *TOP} - {room} for room in TOP}
ALLOWED["train"] = set(ALLOWED)
ALLOWED["models"] = set(ALLOWED) - {"train"}  # models/__init__.py gathers the names


def module_of(path):
    parts = ("identiformer", *path.relative_to(ROOT).with_suffix("").parts)
    return parts[:-1] if parts[-1] == "__init__" else parts


def imported(path):
    """Full dotted names of what `path` imports, anywhere in it."""
    module = module_of(path)
    package = module if path.name == "__init__.py" else module[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            target = ".".join((*base, *filter(None, [node.module])))
            yield target
            yield from (f"{target}.{alias.name}" for alias in node.names)


def room_of(name):
    """The room of a dotted name inside the package, or None."""
    parts = name.split(".")
    if parts[0] != "identiformer" or len(parts) < 2:
        return None
    if parts[1] == "models":
        known = len(parts) > 2 and parts[2] in ALLOWED
        return parts[2] if known else "models"
    return parts[1]


def ids(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [path for path in SOURCES if "models" in path.relative_to(ROOT).parts], ids=ids)
def test_models_need_no_training_library(path):
    assert not {name.split(".")[0] for name in imported(path)} & FORBIDDEN


@pytest.mark.parametrize("path", SOURCES, ids=ids)
def test_imports_go_in_one_direction(path):
    own = room_of(".".join(module_of(path)))
    rooms = {room_of(name) for name in imported(path)} - {None, own, "models"}
    assert rooms <= ALLOWED[own]


@pytest.mark.parametrize("path", SOURCES, ids=ids)
def test_imports_inside_the_package_are_relative(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        assert not [name for name in names if name.split(".")[0] == "identiformer"]


def test_every_room_under_models_is_known():
    found = {
        path.relative_to(ROOT / "models").parts[0].removesuffix(".py")
        for path in SOURCES
        if path.is_relative_to(ROOT / "models")
    }
    assert found - {"__init__"} <= set(ALLOWED)
