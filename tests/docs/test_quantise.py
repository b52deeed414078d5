import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "quantise.md"


def test_the_code_of_the_page_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 5
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:  # one program, in the order of the page
        exec(compile(block, str(PAGE), "exec"), names)
