import logging

import pytest
from torch import nn

import chop
from chop.log import get_report_logger
from chop.tools import get_logger, set_logging_verbosity
from chop.tools.utils import deepgetattr, deepsetattr


@pytest.fixture(autouse=True)
def levels():
    logger = logging.getLogger("chop")
    before = logger.level
    yield
    logger.setLevel(before)


def test_the_facade_is_reached_from_the_package():
    assert chop.tools.get_logger is get_logger
    with pytest.raises(AttributeError, match=r"'chop.tools' has no attribute 'get_model'"):
        _ = chop.tools.get_model


def test_a_named_logger_takes_a_level_by_name():
    logger = get_logger("mase_logger")
    logger.setLevel("INFO")
    assert logger.isEnabledFor(logging.INFO)


def test_verbosity_is_that_of_the_whole_package():
    set_logging_verbosity("debug")
    assert get_logger("chop.ir.trace.tracer").isEnabledFor(logging.DEBUG)
    set_logging_verbosity(logging.ERROR)
    assert not get_logger("chop.ir.trace.tracer").isEnabledFor(logging.WARNING)


def test_an_unknown_level_lists_the_known():
    with pytest.raises(ValueError, match=r"unknown level 'loud'. Allowed: debug, info, warning"):
        set_logging_verbosity("loud")


def test_reports_are_said_whatever_the_verbosity(capsys):
    set_logging_verbosity("error")
    get_report_logger().info("a table")
    assert capsys.readouterr().out == "a table\n"


def test_attributes_are_set_and_got_by_path():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    replacement = nn.Identity()
    deepsetattr(model, "0.0", replacement)
    assert deepgetattr(model, "0.0") is replacement
    deepsetattr(model, "note", 3)
    assert model.note == 3


def test_a_missing_path_is_an_error_unless_a_default_is_given():
    with pytest.raises(AttributeError, match="no attribute 'b'"):
        deepgetattr(nn.Linear(1, 1), "weight.b.c")
    assert deepgetattr(nn.Linear(1, 1), "weight.b.c", None) is None
