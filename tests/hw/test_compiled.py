"""The compiled cycle model against its plain reference, and both against twins of their own."""

import pytest
from designs import mlp, residual

from chop import native
from chop.errors import HardwareError
from chop.hw.design.component import COMPONENTS
from chop.hw.design.control import Wire
from chop.hw.design.cycle_model import Bracket, Queue, Twin, declared, from_record, record
from chop.hw.design.process import Machine, Phase, Process, take
from chop.hw.sim.component_check import bench_design
from chop.hw.timing import compiled
from chop.hw.timing.cycles import Stalls, simulate_control, size_fifos
from chop.hw.timing.network import ReferenceRun, TwinNetwork

NAMES = sorted(name for name, cls in COMPONENTS.items() if cls.__module__.startswith("chop."))
needs_compiler = pytest.mark.skipif(
    native.find_compiler() is None, reason="no C++ compiler here; install one to run this"
)


def both(design, stalls, tensors=3, queues=(), gated=(), patience=500, limit=None):
    """What the compiled model and the reference say of the same run."""
    wanted = [
        [tensors * s.beats for s in streams.values()]
        for streams in (design.inputs, design.output_streams())
    ]
    networks = [TwinNetwork(design, {w: Queue(3) for w in queues}, gated) for _ in range(2)]
    fast = compiled.run(networks[0], stalls, tuple(wanted), patience, limit)
    return fast, ReferenceRun(networks[1], stalls, *wanted).run(patience, limit)


def assert_same(fast, plain):
    for side in ("inputs", "outputs"):
        pairs = zip(getattr(fast, side), getattr(plain, side), strict=True)
        assert all(list(a) == list(b) for a, b in pairs)
    assert fast[2:] == plain[2:]


@pytest.mark.share(2)
@needs_compiler
@pytest.mark.parametrize("name", NAMES)
def test_every_component_moves_alike_in_both(name):
    cases = COMPONENTS[name].cases()
    design = bench_design(cases[:: max(1, len(cases) // 4)])
    assert_same(*both(design, Stalls()))
    assert_same(*both(design, Stalls(0.6, 0.7, 3, burst=2)))


@needs_compiler
def test_designs_move_alike_with_queues_gates_and_limits():
    fork, inside = Wire("data_in_0_fork", 1), (Wire("data_in_0_fork", 0), Wire("relu"), Wire("fc1"))
    for stalls in (Stalls(), Stalls(0.7, 0.6, 2), Stalls(0.9, 0.9, 4, inside=0.5)):
        assert_same(*both(residual(), stalls, queues=(fork,), gated=inside))
        assert_same(*both(residual(size=16), stalls, limit=37))
    assert_same(*both(mlp((16, 64, 32, 8), (4, 8, 4, 2)), Stalls()))


@needs_compiler
def test_a_deadlock_is_the_same_in_both():
    fast, plain = both(residual(), Stalls())
    assert not plain.is_done
    assert_same(fast, plain)
    assert_same(*both(residual(), Stalls(), limit=100))


def test_without_a_compiler_the_reference_is_run(monkeypatch):
    design = residual()
    depths, timing = size_fifos(design), simulate_control(mlp((8, 8), (2, 2)), 2)
    monkeypatch.setattr(compiled, "library", lambda: None)
    assert size_fifos(design) == depths
    again = simulate_control(mlp((8, 8), (2, 2)), 2)
    assert list(again.outputs["data_out_0"]) == list(timing.outputs["data_out_0"])
    with pytest.raises(HardwareError, match=r"deadlocks in cycle \d+: beats wait behind .*fork"):
        simulate_control(residual(), tensors=2)


class SlowTwin(Queue):
    """A queue that takes every other cycle: what no process can say."""

    def step(self, taken, given):
        super().step(taken, given)
        self.takes = self.takes and not taken


def test_a_step_of_its_own_counts_where_it_is_the_nearer():
    assert declared(SlowTwin(2)) is None
    assert declared(Queue(2)).depth == 2
    network = TwinNetwork(mlp((8, 8), (2, 2)), {Wire("data_in_0"): SlowTwin(2)}, ())
    assert not network.is_declared
    told = ReferenceRun(network, Stalls(), [8], [8]).run(200, None)
    assert list(told.inputs[0])[:4] == [0, 2, 4, 6]


@pytest.mark.parametrize("twin", [Queue(1), Queue(2), Queue(5), Bracket(1), Bracket(4)])
def test_a_process_moves_as_the_step_of_its_twin(twin):
    machine = Machine(twin.process())
    state = 1
    for _ in range(400):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        assert machine.offers == [twin.gives]
        assert machine.takes([True]) == [twin.takes]
        taken, given = twin.takes and bool(state >> 20 & 3), twin.gives and bool(state >> 24 & 1)
        twin.step(taken, given)
        machine.step([taken], [given])


RECORDS = (
    ("Queue", 2),
    ("Bracket", 3),
    ("Fork", 2),
    ("Join", 2),
    ("Gearbox", 2, 3),
    ("Reorder", 6),
    ("Linear", (4, 2), 4),
    ("Window", (5, 4), (3, 3), (1, 1), (1, 1), 1),
    ("Reduce", 4, 2),
    ("Constants",),
)
"""Twins of the files of earlier versions."""


@pytest.mark.parametrize("told", RECORDS, ids=[told[0] for told in RECORDS])
def test_twins_of_files_written_before_are_known(told):
    process = declared(from_record(told))
    assert len(process.table) == len(process.quiet) > 0


def test_a_reordering_written_before_keeps_its_cycles():
    process = from_record(("Reorder", 6)).process()
    assert (process.depth, process.latency, process.slots) == (0, 0, (12,))


@pytest.mark.parametrize("name", NAMES)
def test_files_keep_every_twin(name):
    for twin in COMPONENTS[name].cases()[0].twins():
        again = from_record(record(twin))
        assert (again.process().table == twin.process().table).all()
        assert again.sources == twin.sources


class UnlikeRates(Twin):
    """Eight beats of one operand for each beat of the other; two outputs at different rates."""

    inputs = 2

    def process(self):
        return Process(
            (
                Phase(needs={1: 8}),
                Phase(7, takes=(0,), gives=(0,)),
                Phase(takes=(0,), frees={1: 8}, gives=(0, 1)),
            ),
            slots=(0, 16),
            latency=2,
            outputs=2,
        )


def test_operands_and_results_at_unlike_rates():
    machine = Machine(UnlikeRates().process())
    taken, given = [0, 0], [0, 0]
    for _ in range(200):
        ready, offers = machine.takes([True, True]), machine.offers
        machine.step(ready, offers)
        taken = [n + r for n, r in zip(taken, ready, strict=True)]
        given = [n + o for n, o in zip(given, offers, strict=True)]
    assert taken[0] // 8 == given[1] and given[0] == taken[0] - 2 and 0 <= taken[1] - taken[0] <= 16
    assert take().takes == take().gives == (0,)
