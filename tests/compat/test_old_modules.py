"""Modules under their earlier paths."""

import importlib
import pickle

import pytest

from chop.compat.old_modules import OLD_MODULES


@pytest.mark.parametrize("old", OLD_MODULES)
def test_the_old_name_is_the_module_itself(old):
    module = importlib.import_module(old)
    assert module is importlib.import_module(OLD_MODULES[old])
    assert module.__name__ == module.__spec__.name == OLD_MODULES[old]


def test_a_pickle_that_names_the_old_place_is_read():
    named = pickle.dumps(importlib.import_module("chop.ir.store.traced").TracedModule, protocol=0)
    old = named.replace(b"chop.ir.store.traced", b"chop.ir.traced")
    assert old != named
    assert pickle.loads(old) is pickle.loads(named)
