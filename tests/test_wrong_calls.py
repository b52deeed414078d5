"""Wrong calls of the Python API: each ends with one message that says what is wrong."""

import logging

import numpy as np
import pytest
import torch
import wrong_calls
from huggingface_hub import constants
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from chop.arguments import MANY, MAPPING, NONE, PATH, WHOLE, check, takes
from chop.errors import ConfigError
from chop.nn.quantizers import Integer


def test_there_are_many_wrong_calls():
    calls = [call for call, _ in wrong_calls.lines()]
    assert len(calls) == len(set(calls)) >= 300
    assert all(words for _, words in wrong_calls.lines())


def test_every_wrong_call_says_what_is_wrong(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(logging.root.manager, "disable", logging.WARNING)
    found = wrong_calls.outcomes(tmp_path)
    wrong = [(call, told) for call, _, is_clear, told in found if not is_clear]
    if not fake_tensors_refuse_real_indices():
        wrong = [
            (call, told) for call, told in wrong if not call.startswith("MaseGraph(bert, dummy")
        ]
    unclear = [f"{call} -> {told}" for call, told in wrong]
    assert not unclear, "\n".join(unclear)


def fake_tensors_refuse_real_indices():
    """Whether this torch sees without values that floats are no indices of an embedding."""
    with FakeTensorMode():
        try:
            nn.functional.embedding(torch.zeros(2), torch.zeros(3, 4))
        except RuntimeError:
            return True
    return False


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (PATH, "a", 3),
        (PATH | NONE, None, 3),
        (MAPPING, {}, []),
        (MANY, (1,), "text"),
        (WHOLE, 3, True),
    ],
)
def test_kinds_accept_what_they_say(kind, good, bad):
    check("here", kind, good)
    with pytest.raises(ConfigError, match=f"here: expected {kind.words}, got "):
        check("here", kind, bad)


def test_numbers_of_numpy_are_numbers():
    check("here", WHOLE, np.int64(3))
    assert Integer(np.int64(8), np.float32(4)) == Integer(8, 4)
    assert type(Integer(np.int64(8)).width) is int


def test_arguments_are_checked_by_position_and_by_name():
    @takes(b=WHOLE)
    def function(a, b=0, *, c=None):
        return a, b, c

    assert function("x", 1, c=2) == ("x", 1, 2)
    for wrong in (lambda: function("x", "y"), lambda: function("x", b="y")):
        with pytest.raises(ConfigError, match=r"function: b: expected a whole number, got 'y'"):
            wrong()
