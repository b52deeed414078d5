"""A way to run `mase` as a user does, in a folder of its own, and a small trained model."""

import json
from dataclasses import dataclass

import pytest

from chop.cli.main import main

TRAIN = "train mlp --dataset digits --epochs 4 --learning-rate 1e-2 --set model_options.hidden=[16]"


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def document(self):
        """The JSON document on stdout; an error where there is more or less than one."""
        return json.loads(self.out)


@pytest.fixture
def mase(tmp_path, monkeypatch, capsys):
    """`mase("trace mlp", "--json")` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(line, *more):
        capsys.readouterr()
        code = main([*line.split(), *map(str, more)])
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The output folder of a training on the digits."""
    folder = tmp_path_factory.mktemp("trained")
    assert main([*TRAIN.split(), "--quiet", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="session")
def search_line(trained):
    """A search of three trials that keeps its best model."""
    rows = "--dataset digits --train-rows 128 --test-rows 64"
    formats = "--formats integer,mxint --trials 3 --costs model_bytes --apply best"
    return f"search {trained} {rows} {formats}"


@pytest.fixture(scope="session")
def searched(tmp_path_factory, search_line):
    """The output folder of that search."""
    folder = tmp_path_factory.mktemp("searched")
    assert main([*search_line.split(), "--quiet", "--out", str(folder)]) == 0
    return folder
