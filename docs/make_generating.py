"""Lets small language models of every family generate, and writes the table in docs/coverage.md.

    python docs/make_generating.py

Tokens of the graph are compared with those of the eager model's own `generate`, for a batch of
prompts of unequal lengths. The table is the last section of the page, after its mark.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CompileConfig

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from generating_models import (  # noqa: E402
    FAMILIES,
    PAIRS,
    agree,
    graph,
    model,
    prompts,
    tokens,
)

from chop import MaseGraph  # noqa: E402

PAGE = ROOT / "docs" / "coverage.md"
MARK = "<!-- generating: written by docs/make_generating.py -->"
INTRODUCTION = """
## Language models that generate

Captured with `MaseGraph(model, cache=True)`, transformers {version}: whether the tokens of
`mg.generate` are those of the eager model's own `generate`. *Captured* means open in batch size and
length; Whisper's encoder takes one length alone. All but *one prompt* are batches of three prompts
of unequal lengths, padded (sounds are not); *right* is padding on the other side than the family is
used with. *Compiled* is a static cache through `torch.compile`, *loaded* a graph from its file.
"""


def captured(name: str) -> bool:
    """Open in batch size and length."""
    sizes = graph(name).open_sizes()
    sizes.pop("input_features", None)
    return all(size == ["free", "free"] for size in sizes.values())


def one_prompt(name: str) -> bool:
    """A batch of one, without padding."""
    return agree(name, {k: v[:1] for k, v in padded(name).items()})


def padded(name: str, *, other: bool = False) -> dict[str, torch.Tensor]:
    """Prompts padded on the side that the family is used with, or on the other."""
    return prompts(name, side="right" if (name in PAIRS) != other else "left")


def compiled(name: str) -> bool:
    """A static cache through torch.compile."""
    torch._dynamo.reset()
    config: Any = CompileConfig(backend="eager", mode=None)
    config._compile_all_devices = True
    options = {"cache_implementation": "static", "compile_config": config}
    found = tokens(graph(name).generate, padded(name), **options)
    torch._dynamo.reset()
    return torch.equal(found, tokens(model(name).generate, padded(name)))


def loaded(name: str) -> bool:
    """A graph that comes from a file."""
    with tempfile.TemporaryDirectory() as folder:
        graph(name).export(Path(folder) / "graph")
        found = MaseGraph.from_checkpoint(Path(folder) / "graph")
    return torch.equal(
        tokens(found.generate, padded(name)), tokens(model(name).generate, padded(name))
    )


COLUMNS: dict[str, Callable[[str], bool]] = {
    "captured": captured,
    "one prompt": one_prompt,
    "batch": lambda name: agree(name, padded(name)),
    "right": lambda name: agree(name, padded(name, other=True)),
    "sampling": lambda name: agree(name, padded(name), do_sample=True, top_k=20, temperature=1.3),
    "beams": lambda name: agree(name, padded(name), num_beams=3),
    "static": lambda name: agree(name, padded(name), cache_implementation="static"),
    "compiled": compiled,
    "no cache": lambda name: agree(name, padded(name), use_cache=False),
    "loaded": loaded,
}


KNOWN = {("compiled", "Mixtral"): "bfloat16 alone"}
"""What torch refuses: its grouped product compiles in bfloat16 alone."""


def answer(check: Callable[[str], bool], name: str) -> str:
    """`yes` or `no`; the page says why where it fails."""
    try:
        return "yes" if check(name) else "no"
    except Exception as error:  # a row says what does not work
        print(f"{name}: {error}", file=sys.stderr)
        return "error"


def section() -> str:
    """The section of the page."""
    rows = []
    for name in FAMILIES:
        found = [KNOWN.get((c, name)) or answer(check, name) for c, check in COLUMNS.items()]
        print(name, *found, flush=True)
        rows.append(f"| {name} | {' | '.join(found)} |")
    heads = [f"| family | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    text = INTRODUCTION.format(version=transformers.__version__)
    return "\n".join([MARK, text, *heads, *rows]) + "\n"


def main() -> None:
    """Write the section in the place of the one there is."""
    transformers.logging.set_verbosity_error()
    kept = PAGE.read_text().partition(MARK)[0].rstrip("\n")
    PAGE.write_text(f"{kept}\n\n{section()}")


if __name__ == "__main__":
    main()
