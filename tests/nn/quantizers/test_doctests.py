import doctest
import importlib
import pkgutil

import pytest
import torch

from chop.nn import quantizers

MODULES = [m.name for m in pkgutil.iter_modules(quantizers.__path__, f"{quantizers.__name__}.")]


@pytest.mark.parametrize("name", [quantizers.__name__, *MODULES])
def test_the_examples_in_docstrings_hold(name):
    failed, _ = doctest.testmod(importlib.import_module(name), extraglobs={"torch": torch})
    assert failed == 0
