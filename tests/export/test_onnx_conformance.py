"""The conformance tests of ONNX itself."""

import pytest

pytest.importorskip("onnx", reason="needs masegraph[export]")
from onnx_conformance import Case, cases, outcome

KNOWN = ("StringNormalizer",)
"""Operators of model tests that are not read: strings."""
NODES = 0.85
"""Least share of the node tests of listed operators that pass."""


def failures(tests: list[Case], *, is_captured: bool) -> dict[str, str]:
    """Return the reason for each test that fails."""
    reasons = {case.name: outcome(case, is_captured=is_captured) for case in tests}
    return {name: reason for name, reason in reasons.items() if reason}


def readable_models() -> list[Case]:
    return [c for c in cases("model") if not any(k in o for o in c.operators for k in KNOWN)]


def test_a_sample_of_the_models_computes_what_onnx_expects():
    sample = [c for c in readable_models() if c.kind != "light"][::6]
    assert len(sample) > 15
    assert failures(sample, is_captured=False) == {}
    assert failures(sample[::5], is_captured=True) == {}


@pytest.mark.slow
def test_all_models_compute_what_onnx_expects():
    readable = readable_models()
    assert len(readable) >= 0.95 * len(list(cases("model")))
    assert failures(readable, is_captured=True) == {}


@pytest.mark.slow
def test_most_node_tests_of_listed_operators_pass():
    listed = [c for c in cases("node") if c.is_listed]
    failed = failures(listed, is_captured=True)
    assert len(listed) > 1400
    assert 1 - len(failed) / len(listed) >= NODES, failed
