"""Modules under their earlier paths."""

import importlib
import pickle

import pytest

from chop.compat.old_modules import OLD_MODULES, current_path
from chop.ir.store.vocabulary import find_function, find_layer, functions


@pytest.mark.parametrize("old", OLD_MODULES)
def test_the_old_name_is_the_module_itself(old):
    module = importlib.import_module(old)
    assert module is importlib.import_module(OLD_MODULES[old])
    assert module.__name__ == module.__spec__.name == OLD_MODULES[old]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("chop.hw.explore.best", "chop.hw.flow.explore.best"),
        ("chop.hw.predict.model", "chop.hw.flow.predict.model"),
        ("chop.hw.rtl.fixed_linear.folded_product", "chop.hw.library.fixed_linear.folded_product"),
    ],
)
def test_a_module_below_an_old_name_is_not_loaded_twice(old, new):
    assert importlib.import_module(old) is importlib.import_module(new)


def test_a_module_that_never_was_below_an_old_name_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'chop.hw.flow.explore.bets'"):
        importlib.import_module("chop.hw.explore.bets")


def test_a_pickle_that_names_the_old_place_is_read():
    named = pickle.dumps(importlib.import_module("chop.ir.store.traced").TracedModule, protocol=0)
    old = named.replace(b"chop.ir.store.traced", b"chop.ir.traced")
    assert old != named
    assert pickle.loads(old) is pickle.loads(named)


def earlier_names(names):
    """Yield names of a checkpoint today, and the names that earlier versions stored for them."""
    for name in names:
        for old, new in OLD_MODULES.items():
            if name.startswith(f"{new}."):
                yield name, old + name.removeprefix(new)


def test_a_function_is_found_by_the_path_that_earlier_checkpoints_store():
    pairs = list(earlier_names(functions()))
    assert ("chop.ir.kv_cache.causal_mask", "chop.ir.past.causal_mask") in pairs
    assert all(find_function(old) is find_function(new) is not None for new, old in pairs)


def test_an_earlier_path_lets_no_other_name_in():
    assert current_path("os.system") == "os.system"
    assert find_function("chop.ir.past.torch") is None
    assert find_layer("chop.models.old.VGG7") is None
