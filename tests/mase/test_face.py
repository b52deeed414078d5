"""`mase` is `chop` by another name: the same objects, loaded once."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import chop
import mase

PARTS = ("passes", "nn.quantizers", "models", "dataset", "ir.graph", "passes.module", "errors")


def test_every_public_name_is_the_same():
    assert set(chop.__all__) == set(mase.__all__) <= set(dir(mase))
    for name in chop.__all__:
        assert getattr(mase, name) is getattr(chop, name)
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = mase.nothing_of_the_kind


@pytest.mark.parametrize("part", PARTS)
def test_no_module_is_loaded_twice_or_renamed(part):
    ours, real = (importlib.import_module(f"{name}.{part}") for name in ("mase", "chop"))
    assert ours is real
    assert real.__name__ == real.__spec__.name == f"chop.{part}"


def test_statements_of_every_form_work():
    import mase.passes as passes
    from mase.passes.graph import quantize_transform_pass

    from mase import MaseGraph

    assert passes is chop.passes and MaseGraph is chop.MaseGraph
    assert quantize_transform_pass is chop.passes.quantize_transform_pass


def test_a_module_that_is_not_there_is_an_import_error():
    with pytest.raises(ModuleNotFoundError, match=r"mase\.nothing"):
        importlib.import_module("mase.nothing")


def run_python(*words):
    source = str(Path(chop.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source}
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, check=True
    )


def test_python_m_mase_is_the_command_line():
    assert run_python("-m", "mase", "--help").stdout.startswith("usage: mase COMMAND")


def test_the_face_comes_first_and_is_light():
    code = (
        "import sys, mase.errors; print('torch' in sys.modules, mase.errors.ChopError.__module__)"
    )
    assert run_python("-c", code).stdout.split() == ["False", "chop.errors"]


def test_the_readme_names_every_package_that_the_wheel_installs():
    root = Path(__file__).parents[2]
    said = next(
        line for line in (root / "README.md").read_text().splitlines() if "top-level" in line
    )
    for folder in (root / "src").iterdir():
        if (folder / "__init__.py").is_file():
            assert f"`{folder.name}`" in said
