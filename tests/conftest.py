"""What every test shares: the model zoo on the path, one thread, a fixed seed, honest skips."""

import gc
import itertools
import logging
import os
import signal
import sys
from pathlib import Path

import _pytest.logging
import pytest
import torch
from hypothesis import HealthCheck, settings

from chop import toolchain
from chop.cli import execute
from chop.hw.sim import verilate
from chop.log import get_logger, warn_once

sys.path.insert(0, str(Path(__file__).parent))
from browsing import browser, visit  # noqa: F401
from covering import drawn

torch.set_num_threads(1)  # two workers share two cores
# No test may depend on the machine's speed.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")
# Simulators of tests run for less time than an optimising compiler takes.
verilate._LEVELS.update(dict.fromkeys(("fast", "long"), verilate._LEVELS["quick"]))
# Tests send SIGINT to programs, which inherit it ignored where the tests run under nohup.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


SEED = int(os.environ.get("MASE_TEST_SEED", "0"))
"""Another one draws other weights everywhere: what then fails hung on the draw."""


for device in (torch.cuda, torch.xpu, torch.mtia):
    # Without the device torch formats a traceback for each seed it gets: milliseconds per call.
    if not device.is_available():
        device.manual_seed_all = lambda seed: None


def seed():
    """Set the seed of every random number generator of torch."""
    torch.manual_seed(SEED)


def pytest_collectstart(collector):
    """Draw what a test file makes when it is imported alike, whatever was imported before it."""
    if isinstance(collector, pytest.Module):
        seed()


@pytest.fixture(autouse=True)
def _seeded():
    seed()


class _ListensToUs(_pytest.logging.catching_logs):
    """Hears what reaches the root, and our loggers, which do not propagate.

    pytest looks through all loggers there are, thousands of torch's and transformers', six times a
    test.
    """

    def __enter__(self):
        manager = logging.root.manager
        everyone = manager.loggerDict
        manager.loggerDict = {name: get_logger(name) for name in ("chop", "chop.report")}
        try:
            return super().__enter__()
        finally:
            manager.loggerDict = everyone


_pytest.logging.catching_logs = _ListensToUs


@pytest.fixture
def notices():
    """What the package has warned of so far; messages that are said once count anew."""
    heard = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: heard.append(record.getMessage())
    warn_once.cache_clear()
    get_logger().addHandler(handler)
    yield heard
    get_logger().removeHandler(handler)


COVERED_CASES = 1
"""Cases of a parametrised test whose coverage is measured; measuring doubles their time."""


@pytest.hookimpl(tryfirst=True)  # before pytest leaves the slow tests out
def pytest_collection_modifyitems(items):
    """Mark the cases of large tables that are slow, and those whose coverage is not measured."""
    by_function: dict = {}
    for item in items:
        by_function.setdefault((item.path, getattr(item, "originalname", item.name)), []).append(
            item
        )
    for cases in by_function.values():
        _mark_the_rest_slow(cases)
        stride = -(-len(cases) // COVERED_CASES)
        for number, item in enumerate(cases):
            if number % stride:
                item.add_marker(pytest.mark.no_cover)


def _mark_the_rest_slow(cases):
    """Mark as slow all but one in n cases of a test marked `share(n)`."""
    marker = cases[0].get_closest_marker("share")
    if marker is None:
        return
    fast = [case for case in cases if case.get_closest_marker("slow") is None]
    rows = {
        f"{SEED} {case.nodeid}": set(case.callspec.indices.items())
        for case in fast
        if hasattr(case, "callspec")
    }
    kept = drawn(rows, marker.args[0])
    for case in fast:
        if f"{SEED} {case.nodeid}" in rows.keys() - kept:
            case.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """Leave modules and tests, which stay, out of what is searched for garbage."""
    _settle()
    gc.set_threshold(10_000, 20, 50)


TESTS_BEFORE_SETTLING = 500
_ended = itertools.count(1)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown():
    """Leave what tests left behind, caches above all, out of later searches for garbage.

    A search through all that thousands of tests have left takes a second.
    """
    if next(_ended) % TESTS_BEFORE_SETTLING == 0:
        _settle()


def _settle():
    """Free garbage, and never search again through what is left."""
    gc.collect()
    gc.freeze()
    execute._are_frozen = True  # a command would let go of them


SIMULATOR = ("verilator", "g++")


def pytest_runtest_setup(item):
    """Simulator tests skip, with the remedy, where a tool is missing."""
    needed = [tool for marker in item.iter_markers("sim") for tool in (marker.args or SIMULATOR)]
    reason = toolchain.missing(*needed)
    if reason:
        pytest.skip(reason)
