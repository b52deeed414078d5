"""The page on writing passes is run as it stands, from top to bottom."""

import re
from pathlib import Path

import pytest
from passes.graphs import annotated, node_of

from chop.passes import PASSES

PAGE = Path(__file__).parents[2] / "docs" / "own_pass.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


@pytest.fixture
def registry():
    """The page registers a pass; the registry is put back after it."""
    before = dict(PASSES._things)
    yield PASSES
    PASSES._things.clear()
    PASSES._things.update(before)


def test_the_page_runs(registry):
    world = {"__name__": "own_pass"}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), world)
    assert world["info"] == {"count": 14}
    assert "count_ops_analysis_pass" in registry


def test_each_pass_of_the_page_is_ten_lines_at_most():
    text = "\n".join(BLOCKS)
    bodies = re.findall(r"^def \w+_pass\(.*?(?=^\S|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    assert len(bodies) == 3
    assert all(len(body.strip().splitlines()) <= 10 for body in bodies)


def test_erasing_a_node_with_users_gives_torchs_own_error():
    graph = annotated("MLP")
    wanted = "Tried to erase Node fc1 but it still had 1 users in the graph"
    with pytest.raises(RuntimeError, match=wanted) as caught:
        graph.fx_graph.erase_node(node_of(graph, "fc1"))
    assert type(caught.value) is RuntimeError
