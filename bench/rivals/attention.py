"""The self-attention of the ViT's first layer, through alkaid and through MASE, by Yosys.

    python bench/rivals/attention.py weights out/attention.npz          # here
    python bench/rivals/attention.py emit out/attention.npz out/alkaid  # where alkaid is installed
    python bench/rivals/attention.py count out/alkaid                   # here

alkaid (x86-64 Linux alone, `pip install alkaid` in an environment of its own) unrolls: a new input
of all tokens each cycle, products with constants as shifts and sums. Whole, that attention is more
than Yosys maps in a day, so its parts are synthesised and counted as often as they occur: each of
the four projections for each token, and for each head and query the scores of a row, its softmax
and the mean of the values. Both compute on 8 bits at the places that MASE has chosen, alkaid with
tables for exponential and reciprocal. MASE folds: the counts are of the whole design.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

TOKENS, SIZE, HEADS = 16, 32, 2
HEAD = SIZE // HEADS
PROJECTIONS = ("query", "key", "value", "out")
COPIES = {**dict.fromkeys(PROJECTIONS, TOKENS), "scores": TOKENS * HEADS * TOKENS}
COPIES |= {"softmax": TOKENS * HEADS, "values": TOKENS * HEADS * HEAD}
"""How often each part occurs: one score, one row of softmax, one feature of a mean."""
CUTOFF = 5
"""Delay of a stage of alkaid's pipeline, in its units; its own command line's choice."""


def weights(args: argparse.Namespace) -> None:
    """The integers of the four projections, and where their points are."""
    vit_graph(args).write(args.file)


def emit_parts(args: argparse.Namespace) -> None:
    """Each part as Verilog, by alkaid."""
    from alkaid.codegen import RTLModel
    from alkaid.trace import trace

    given = np.load(args.file)
    for name in COPIES:
        inputs, outputs = part(name, given)
        logic = trace(inputs, outputs)
        place = args.folder / name
        model = RTLModel(logic, place, "top", latency_cutoff=CUTOFF, print_latency=False)
        model.write()
        (place / "rtl").mkdir(exist_ok=True)
        for source in (place / "src").rglob("*.v"):
            if "wrapper" not in source.name:
                (place / "rtl" / f"{source.stem}.sv").write_bytes(source.read_bytes())
        print(name, "estimated cost", logic.cost, "latency", model.latency, flush=True)


def part(name: str, given: Any) -> tuple[Any, Any]:
    """Inputs and outputs of a part, in alkaid's variables."""
    if name in PROJECTIONS:
        x = fixed(SIZE, int(given[f"{name}_in"]))
        return x, rounded(x @ given[f"{name}_weight"].T + given[f"{name}_bias"], given, name)
    if name == "scores":
        q, k = fixed(HEAD, int(given["query_out"])), fixed(HEAD, int(given["key_out"]))
        return joined(q, k), rounded(np.sum(q * k, keepdims=True), given, "scores")
    if name == "values":
        p, v = fixed(TOKENS, 8, signed=0), fixed(TOKENS, int(given["value_out"]))
        return joined(p, v), rounded(np.sum(p * v, keepdims=True), given, "values")
    x = fixed(TOKENS, int(given["scores_out"]))
    powers = np.exp((x - np.max(x, keepdims=True)) * HEAD**-0.5).quantize(0, 1, 12, "SAT", "RND")
    scale = (1 / np.sum(powers, keepdims=True)).quantize(0, 1, 15, "SAT", "RND")
    return x, (powers * scale).quantize(0, 0, 8, "SAT", "RND")


def fixed(count: int, places: int, signed: int = 1) -> Any:
    """Inputs of 8 bits with so many after the point."""
    from alkaid.trace import FVArray

    kif = (signed, 8 - signed - places, places)
    return FVArray.from_kif(*(np.full(count, n) for n in kif), solver_options={"hard_dc": 2})


def joined(one: Any, other: Any) -> Any:
    """All inputs of a part in a row."""
    return np.concatenate([one, other])


def rounded(x: Any, given: Any, name: str) -> Any:
    """To 8 bits with a sign, where MASE has the point; to the nearest, within the range."""
    places = int(given[f"{name}_out"])
    if places < 0:  # as it is
        return x
    return x.quantize(1, 7 - places, places, "SAT", "RND")


# -- our side --------------------------------------------------------------------------------------


def vit_graph(args: argparse.Namespace) -> Any:
    """Our part of the program, which alkaid's environment has not."""
    sys.path[0] = str(Path(__file__).parents[1])
    sys.path.append(str(Path(__file__).parent))
    import our_attention

    return our_attention.Attention(args.trained)


def count(args: argparse.Namespace) -> None:
    """Yosys' cells of both, written down."""
    vit_graph(args).count(args.folder, COPIES)


def main() -> None:
    """One of the three steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trained", type=Path, default=Path("out/transformer"))
    steps = parser.add_subparsers(required=True)
    for name, run, takes in (
        ("weights", weights, ("file",)),
        ("emit", emit_parts, ("file", "folder")),
        ("count", count, ("folder",)),
    ):
        step = steps.add_parser(name)
        for argument in takes:
            step.add_argument(argument, type=Path)
        step.set_defaults(run=run)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
