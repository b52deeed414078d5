"""CONTRIBUTING.md draws the layers in the order of the import contract, which CI checks."""

import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]
LAYERS = {c["containers"][0]: c for c in CONTRACTS if c["type"] == "layers"}
CHAINS = {
    "chop": r"^cli → .*?(?=^```)",
    "chop.ir": r"graph → trace → [^`]*",
    "chop.passes": r"^graph → module → .*?(?=^```)",
    "chop.passes.ptq": r"sites → [^`]*",
    "chop.hw": r"^boards → .*?(?=^```)",
}
"""Text of each chain in CONTRIBUTING.md."""


def drawn(container: str) -> list[list[str]]:
    """Return the names of a chain in CONTRIBUTING.md, arrow by arrow."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    chain = re.search(CHAINS[container], page, re.M | re.S)
    return [re.findall(r"[a-z][\w.]+", part) for part in chain[0].split("→")]


def test_every_contract_of_layers_is_drawn():
    assert {*CHAINS} == {*LAYERS}


@pytest.mark.parametrize("container", CHAINS)
def test_the_chain_has_the_order_of_the_contract(container):
    names = [re.findall(r"\(([\w.]+)\)", row) for row in LAYERS[container]["layers"]]
    layer = {name: number for number, row in enumerate(names) for name in row}
    places = [[layer[n] for n in part if n in layer] for part in drawn(container)]
    assert all(places), "a part without a layer"
    assert [pair for pair in pairwise(places) if max(pair[0]) >= min(pair[1])] == []


def test_the_contracts_have_no_exceptions():
    assert [name for name, contract in LAYERS.items() if "ignore_imports" in contract] == []


def test_every_room_of_the_hardware_has_a_layer():
    assert LAYERS["chop.hw"]["exhaustive"]


def test_the_contracts_are_checked_by_make_test():
    assert '"lint-imports"' in (ROOT / ".ci" / "checks.py").read_text()
