"""Run the conformance tests of ONNX through `from_onnx` and write docs/onnx_conformance.md.

    python docs/make_onnx_conformance.py

It takes about ten minutes.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

import onnx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from onnx_conformance import Case, cases, outcome  # noqa: E402

PAGE = ROOT / "docs" / "onnx_conformance.md"
REASONS = (
    (r"ml_dtypes|type (FLOAT|INT|UINT)\w+\. Allowed", "a type that torch or the reader lacks"),
    (r"object_|StringNormalizer", "strings"),
    (r"not a tensor|inhomogeneous|Optional|single element", "sequences or optionals as inputs"),
    (r"training mode|Gradient", "training"),
    (r"depends on values", "a shape that depends on values of inputs"),
    (r"opset \d+ of ONNX", "an opset before 6"),
    (r"linear_before_reset|peepholes|clip or", "a form of recurrent layers that torch lacks"),
    (r"values differ by (\de-|0\.0)", "rounding: half floats, or a tolerance of 1e-7"),
)
"""Reasons on the page by a pattern in the message; other messages appear as they are."""


Rows = list[tuple[Case, str]]
"""Tests, each with the reason for its failure."""


def reason_of(message: str) -> str:
    """Return the reason on the page for a message."""
    for pattern, reason in REASONS:
        if re.search(pattern, message):
            return reason
    return re.sub(r"^node '[^']*' \([^)]*\): ", "", message).split("\n")[0][:100]


def shown_operator(case: Case) -> str:
    """Return the operator that a node test is about."""
    return case.model.graph.node[0].op_type if len(case.operators) == 1 else "several operators"


def page(rows: Rows, models: Rows, unlisted: Counter[str]) -> str:
    """Return the text of the page."""
    passed = sum(not reason for _, reason in rows)
    models_passed = sum(not reason for _, reason in models)
    by_operator: dict[str, list[str]] = defaultdict(list)
    for case, reason in rows:
        by_operator[shown_operator(case)].append(reason)
    reasons = Counter(reason_of(r) for _, r in rows if r)
    model_reasons = Counter(reason_of(r) for _, r in models if r)
    lines = [
        "# ONNX conformance",
        "",
        f"The package `onnx` {onnx.__version__} has tests for runtimes: models with inputs and "
        "outputs, and generated tests of single operators. Each runs through `from_onnx`, which "
        "captures a graph, and the graph must return the outputs within the tolerance of the "
        "test. Tests pass parameters such as `axes` as inputs. If the reader refuses a test of a "
        "single operator as written, the test runs again with its small inputs (up to 1,024 "
        "elements) as `constants=`. `python docs/make_onnx_conformance.py` writes this page.",
        "",
        "| tests | passed | of | share |",
        "|---|---|---|---|",
        f"| models | {models_passed} | {len(models)} | {models_passed / len(models):.1%} |",
        f"| single operators that the reader lists | {passed} | {len(rows)} "
        f"| {passed / len(rows):.1%} |",
        "",
        f"Another {sum(unlisted.values())} tests use operators that the reader does not list: "
        + ", ".join(f"{name} ({count})" for name, count in sorted(unlisted.items()))
        + ".",
        "",
        "## Reasons for failures",
        "",
        "| reason | models | operators |",
        "|---|---|---|",
    ]
    lines += [
        f"| {name} | {model_reasons[name]} | {reasons[name]} |"
        for name in sorted({*reasons, *model_reasons}, key=lambda n: -reasons[n])
    ]
    lines += ["", "## Tests per operator", "", "| operator | passed | tests |", "|---|---|---|"]
    lines += [
        f"| {name} | {sum(not r for r in found)} | {len(found)} |"
        for name, found in sorted(by_operator.items())
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run all tests and write the page and the counts."""
    models = [(case, outcome(case)) for case in cases("model")]
    tests = list(cases("node"))
    rows = [(case, outcome(case)) for case in tests if case.is_listed]
    unlisted = Counter(case.model.graph.node[0].op_type for case in tests if not case.is_listed)
    PAGE.write_text(page(rows, models, unlisted))
    print(PAGE.read_text().split("## Tests")[0])


if __name__ == "__main__":
    main()
