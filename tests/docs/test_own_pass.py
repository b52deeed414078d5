"""What the page on writing passes promises beyond running (tests/docs/test_pages.py)."""

import re
from pathlib import Path

import pytest
from passes.graphs import annotated, node_of

PAGE = Path(__file__).parents[2] / "docs" / "own_pass.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


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
