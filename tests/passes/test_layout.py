"""The folders of passes hold passes, and imports between the rooms go down."""

import importlib
import pkgutil
import tomllib
from pathlib import Path

import pytest

import chop
from chop.passes.base import PASSES

ROOT = Path(__file__).parents[2]
SOURCE = Path(chop.__file__).parent
KINDS = ("analysis", "transforms", "interface")
SAME_MEANING = {"__init__", "base", "explain", "lora", "prune", "quantize"}
"""File names that other packages have too, for the same thing: a command of a pass, a base class,
modules under names that programs for DeepWok/mase import."""


def modules(package: str) -> list[str]:
    """Return the modules below `package`, without the packages themselves."""
    found = importlib.import_module(package)
    return [m.name for m in pkgutil.walk_packages(found.__path__, f"{package}.") if not m.ispkg]


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_in_a_folder_of_passes_is_a_pass(kind):
    defining = {run.__module__ for run in PASSES.values()}
    assert [m for m in modules(f"chop.passes.graph.{kind}") if m not in defining] == []


def test_graph_holds_nothing_beside_its_folders():
    files = {p.stem for p in (SOURCE / "passes" / "graph").glob("*.py")}
    assert files == {"__init__"}


def test_file_names_of_passes_are_used_once():
    names = [p.stem for p in SOURCE.rglob("*.py") if p.stem not in SAME_MEANING]
    own = {p.stem for p in (SOURCE / "passes").rglob("*.py")}
    assert sorted({n for n in names if n in own and names.count(n) > 1}) == []


def test_the_import_contract_of_the_passes_has_no_exceptions():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    rooms = {c["containers"][0]: c for c in contracts["contracts"] if c["type"] == "layers"}
    for container in ("chop.passes", "chop.passes.ptq"):
        assert rooms[container]["exhaustive"]
        assert "ignore_imports" not in rooms[container]
