"""How a pass becomes known: what the registry refuses, and what the packages export."""

import ast
from pathlib import Path

import pytest
from sources import nodes_of, tree_of

import chop.passes as passes
from chop.errors import RegistryError
from chop.passes import PASSES, graph_pass
from chop.passes.base import check_exports
from chop.passes.rewrite.node_patterns import Pattern, PatternStep

HOME = Path(passes.__file__).parent


def test_every_registered_pass_is_exported():
    assert [name for name in PASSES if getattr(passes, name) is not PASSES[name]] == []
    assert set(PASSES) <= set(passes.__all__)


def test_every_file_that_declares_a_pass_is_imported():
    declared = {
        argument.value
        for path in HOME.rglob("*.py")
        for call in nodes_of(tree_of(path))
        if isinstance(call, ast.Call) and getattr(call.func, "id", None) == "graph_pass"
        for argument in call.args[:1]
        if isinstance(argument, ast.Constant)
    }
    assert declared == set(PASSES)


def test_a_pass_that_its_package_hides_is_an_error():
    package = {"__name__": "chop.passes.graph.analysis", "__all__": []}
    with pytest.raises(RegistryError, match=r"the pass '\w+' of chop.passes.graph.analysis.\w+ is"):
        check_exports(package)


def test_a_need_that_no_pass_gives_is_an_error():
    with pytest.raises(RegistryError, match=r"needs: unknown 'comon'. Did you mean 'common'"):
        graph_pass("look_analysis_pass", needs=("comon",))


def test_a_name_that_tells_no_kind_is_an_error():
    with pytest.raises(RegistryError, match="'look': its name must end in _analysis_pass or"):
        graph_pass("look")


def test_a_pattern_of_an_op_that_is_not_in_the_table_is_an_error():
    with pytest.raises(RegistryError, match=r"step 'scores' of a pattern: unknown op 'matmull'"):
        PatternStep("scores", ("matmull",))
    with pytest.raises(RegistryError, match=r"pattern 'mine': unknown op 'rellu'"):
        Pattern("mine", ("rellu",), rewrite=None)
