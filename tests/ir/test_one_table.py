"""The op table holds what is known of an op: other code does not switch on an op's name."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sources import nodes_of, tree_of

from chop.ir.ops import OPS

SOURCE = Path(__file__).parents[2] / "src"
NODE_KINDS = {"placeholder", "get_attr", "call_function", "call_method", "call_module", "output"}
"""Values of `fx.Node.op`, which some ops are called like."""
NAMES = {*OPS} - NODE_KINDS
OP_NAME = re.compile(r"(\bmase_op|\bop\.name|\bop_name|(^|\.)op|\bop_name\(.*\))$")
"""Expressions that are an op's name."""
PATTERN = "a rewrite names the ops of the pattern that it replaces"
LAYERS = "its default is a list of ops"
MAY_SWITCH = {
    "chop/actions/hardware_formats.py": (2, "formats of results: a column of the table would do"),
    "chop/passes/graph/analysis/sensitivity.py": (1, LAYERS),
    "chop/distributed/saved_tensors.py": (1, "what fused attention stores for backward"),
    "chop/passes/graph/transforms/decompose_attention.py": (1, PATTERN),
    "chop/passes/graph/transforms/decompose_recurrent.py": (1, PATTERN),
    "chop/passes/graph/transforms/fix_sizes.py": (8, PATTERN),
    "chop/passes/graph/transforms/fuse_attention.py": (1, PATTERN),
    "chop/passes/graph/transforms/fuse_patterns.py": (2, PATTERN),
    "chop/passes/ptq/sites/norm_folding.py": (1, PATTERN),
    "chop/passes/ptq/sites/rounded_layers.py": (1, LAYERS),
    "chop/passes/ptq/sites/scaling_sites.py": (1, PATTERN),
    "chop/passes/rewrite/decoder_patterns.py": (3, PATTERN),
}
"""Files that may switch on an op's name: how often, and why. A new file needs a column instead."""


def named(tree: ast.Module) -> dict[str, set[str]]:
    """Return the strings of the constants of a module, by the constant's name."""
    constants: dict[str, set[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            constants[node.targets[0].id] = strings(node.value, constants)
    return constants


def strings(node: ast.AST, constants: dict[str, set[str]]) -> set[str]:
    """Return the strings in an expression, and those of the constants that it names."""
    parts = list(ast.walk(node))
    texts = {n.value for n in parts if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return texts.union(*(constants.get(n.id, set()) for n in parts if isinstance(n, ast.Name)))


def switches(tree: ast.Module) -> Iterator[int]:
    """Yield the lines that compare or match an op's name with names of the table."""
    constants = named(tree)
    for node in nodes_of(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            others = [side for side in sides if not OP_NAME.search(ast.unparse(side))]
            if len(others) < len(sides) and any(strings(o, constants) & NAMES for o in others):
                yield node.lineno
        elif isinstance(node, ast.Match) and OP_NAME.search(ast.unparse(node.subject)):
            yield from (
                c.pattern.lineno for c in node.cases if strings(c.pattern, constants) & NAMES
            )


def test_nothing_outside_the_table_switches_on_the_name_of_an_op():
    found = {}
    for file in sorted((SOURCE / "chop").rglob("*.py")):
        place = str(file.relative_to(SOURCE))
        count = len(list(switches(tree_of(file))))
        if count and not place.startswith("chop/ir/ops/"):
            found[place] = count
    assert found == {place: count for place, (count, _) in MAY_SWITCH.items()}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("if mase_meta(node).common.mase_op == 'linear': pass", 1),
        ("if op.name not in ('linear', 'conv2d'): pass", 1),
        ("if op_name(graph, node) == 'softmax': pass", 1),
        ("LAYERS = ('linear', 'conv2d')\nif op.name in LAYERS: pass", 1),
        ("match op.name:\n  case 'linear' | 'conv2d': pass\n  case _: pass", 1),
        ("if node.op == 'output': pass", 0),
        ("if op.dims == 'linear': pass", 0),
        ("if op.name in config.ops: pass", 0),
    ],
)
def test_a_switch_on_a_name_is_seen(text, count):
    assert len(list(switches(ast.parse(text)))) == count
