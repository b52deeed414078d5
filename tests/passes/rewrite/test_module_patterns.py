"""Patterns name modules by path, by the end of a path, or by an expression."""

import doctest

import pytest

from chop.errors import ConfigError
from chop.passes.rewrite import module_patterns


def test_the_examples_of_the_docstrings_hold():
    assert doctest.testmod(module_patterns).failed == 0


def test_selected_paths_keep_their_order_and_none_selects_all():
    paths = ["a.query", "a.key", "b.query"]
    assert module_patterns.select(["query"], paths, "here") == ["a.query", "b.query"]
    assert module_patterns.select(None, paths, "here") == paths


def test_a_pattern_that_matches_nothing_lists_the_nearest_paths():
    with pytest.raises(ConfigError, match=r"here: 'qery' matches no module. Nearest: query"):
        module_patterns.select(["qery"], ["query", "key"], "here")
