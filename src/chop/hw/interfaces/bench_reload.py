"""Cocotb test bench of weights that are written at run time; its ports are those of `test_axi`.

New weights and the outputs that they give are in `reload/`, if another model was emitted for the
design. Without them the weights of the design itself are written again.
"""

from random import Random
from typing import Any

import cocotb
from cocotb.triggers import ClockCycles, with_timeout
from cocotbext.axi import AxiResp
from reload_host import (
    ABORT,
    BEGIN,
    CHECKSUM,
    CONTROL,
    LOADING,
    NOT_WHOLE,
    PIECE,
    RUN,
    STATUS,
    WAITING,
    WRONG_CHECKSUM,
    ReloadError,
    Steps,
    begin_steps,
    own_pieces,
    read_words,
    reload_steps,
    with_checksum,
)
from test_axi import (
    DESIGN,
    ENTERED,
    HARDWARE,
    PATIENCE_US,
    Ports,
    _frames,
    _started,
)
from test_axi import ROUNDS as CROSSED_ROUNDS

OWN = with_checksum(own_pieces(HARDWARE))
FILE = HARDWARE / "reload" / "weights.mem"
NEW = read_words(FILE) if FILE.exists() else OWN
INVERTED = with_checksum([piece ^ 0xFFFFFFFF for piece in OWN[:-1]])
ROUNDS = 4
"""Times that the inputs are sent while no result is taken: more than a design holds."""
QUIET = 200
"""Cycles in which a design that must not run would take an input."""


def _new_outputs(ports: Ports) -> dict[str, list[bytes]]:
    """Return the frames that the new weights give for the inputs of `test/`."""
    if not FILE.exists():
        return dict(ports.outputs())
    folder = FILE.parent.name
    sinks = ports.sinks.items()
    return {n: _frames(n, DESIGN["outputs"][n], sink.byte_lanes, folder) for n, sink in sinks}


async def _run(ports: Ports, steps: Steps) -> None:
    """Do the accesses of a host."""
    answer = None
    while True:
        try:
            kind, address, value = next(steps) if answer is None else steps.send(answer)
        except StopIteration:
            return
        if kind == "read":
            answer = await ports.read(address)
        else:
            answer = int(await _write(ports, address, value))


async def _write(ports: Ports, address: int, value: int) -> bool:
    """Write a word; return False if it was refused."""
    done = ports.control.write(address, value.to_bytes(4, "little"))
    return bool((await with_timeout(done, PATIENCE_US, "us")).resp == AxiResp.OKAY)


async def _with_own_weights(dut: Any) -> Ports:
    """Return the ports of a design that has its first weights, whatever a test before it wrote."""
    ports = await _started(dut)
    await _run(ports, reload_steps(OWN))
    return ports


async def _refused(ports: Ports, words: list[int]) -> str:
    """Return the words of the failure of a reload."""
    try:
        await _run(ports, reload_steps(words, patience=20))
    except ReloadError as failure:
        return str(failure)
    raise AssertionError("the reload was taken")


async def _check_stopped(ports: Ports) -> None:
    """Check that no input is taken while the weights are not whole, also after a reset."""
    before = await ports.read(ENTERED)
    await ClockCycles(ports.dut.aclk, QUIET)
    assert await ports.read(ENTERED) == before, "an input was taken with weights that are not whole"
    assert await ports.read(STATUS) & NOT_WHOLE


async def _check_exact(ports: Ports, frames: dict[str, list[bytes]]) -> None:
    await ports.send(ports.inputs())
    await ports.expect(frames)


@cocotb.test()
async def new_weights_are_exact(dut: Any) -> None:
    """Run on the first weights, on new ones, on inverted ones and on the first ones again."""
    ports = await _started(dut)
    ports.pause(Random(2))
    assert await ports.read(CHECKSUM) == OWN[-1]
    await _check_exact(ports, ports.outputs())
    await _run(ports, reload_steps(NEW))
    await _check_exact(ports, _new_outputs(ports))
    await _run(ports, reload_steps(INVERTED))
    assert await ports.read(CHECKSUM) == INVERTED[-1]
    await _run(ports, reload_steps(OWN))
    await _check_exact(ports, ports.outputs())
    assert await ports.read(STATUS) == 0


@cocotb.test()
async def a_reload_waits_for_stalled_streams(dut: Any) -> None:
    """Begin a reload while results are not taken and inputs are offered: none is lost or mixed."""
    ports = await _with_own_weights(dut)
    for sink in ports.sinks.values():
        sink.pause = True
    rounds = CROSSED_ROUNDS if hasattr(dut, "axis_aclk") else ROUNDS
    for _ in range(rounds):
        await ports.send(ports.inputs())
    await ClockCycles(dut.aclk, QUIET)
    await ports.write(CONTROL, RUN | BEGIN)
    assert await ports.read(STATUS) & (WAITING | LOADING) == WAITING
    assert not await _write(ports, PIECE, NEW[0]), "a piece was taken while tensors are inside"
    assert "not empty" in await _refused(ports, NEW)
    for sink in ports.sinks.values():
        sink.pause = False
    await _run(ports, begin_steps())
    entered = await ports.read(ENTERED)
    for number, word in enumerate(NEW):
        assert await ports.read(PIECE) == number
        assert await _write(ports, PIECE, word)
    before, after = (
        {name: rounds * own for name, own in each.items()}
        for each in (ports.outputs(), _new_outputs(ports))
    )
    frames = {name: before[name][:entered] + after[name][entered:] for name in before}
    assert entered < len(next(iter(before.values()))), "no input was left for the new weights"
    await ports.expect(frames)
    assert await ports.read(STATUS) == 0


@cocotb.test()
async def a_wrong_checksum_stops_the_design(dut: Any) -> None:
    """Check that a wrong checksum is reported, and that no input is taken until a reload."""
    ports = await _with_own_weights(dut)
    wrong = [*NEW[:-1], NEW[-1] ^ 1]
    assert "is wrong" in await _refused(ports, wrong)
    assert await ports.read(STATUS) == WRONG_CHECKSUM | NOT_WHOLE
    assert await ports.read(CHECKSUM) == OWN[-1]
    await ports.send(ports.inputs())
    await _check_stopped(ports)
    flipped = [NEW[0] ^ 4, *NEW[1:]]
    assert "is wrong" in await _refused(ports, flipped)
    await _run(ports, reload_steps(NEW))
    await ports.expect(_new_outputs(ports))
    assert await ports.read(STATUS) == 0


@cocotb.test()
async def half_a_reload_stops_the_design(dut: Any) -> None:
    """Abort a reload without a piece, and behind some; reset in the middle of another."""
    ports = await _with_own_weights(dut)
    await _run(ports, begin_steps())
    await ports.write(CONTROL, RUN | ABORT)
    assert await ports.read(STATUS) == 0
    await _check_exact(ports, ports.outputs())
    half = len(NEW) // 2
    await _run(ports, begin_steps())
    for word in INVERTED[:half]:
        assert await _write(ports, PIECE, word)
    await ports.write(CONTROL, RUN | ABORT)
    assert await ports.read(STATUS) == NOT_WHOLE
    assert not await _write(ports, PIECE, NEW[0])
    await ports.send(ports.inputs())
    await _check_stopped(ports)
    await _run(ports, reload_steps(NEW))
    await ports.expect(_new_outputs(ports))
    await _run(ports, begin_steps())
    for word in INVERTED[:half]:
        assert await _write(ports, PIECE, word)
    await ports.reset()
    assert await ports.read(STATUS) == NOT_WHOLE, "a reset made half of the weights whole"
    await ports.send(ports.inputs())
    await _check_stopped(ports)
    await _run(ports, reload_steps(NEW))
    await ports.expect(_new_outputs(ports))


@cocotb.test()
async def pieces_are_written_whole_and_in_a_reload_alone(dut: Any) -> None:
    """Check that a piece outside a reload, or with a byte left out, is refused and not counted."""
    ports = await _with_own_weights(dut)
    assert not await _write(ports, PIECE, NEW[0])
    await _run(ports, begin_steps())
    part = await with_timeout(ports.control.write(PIECE + 1, b"\0\0"), PATIENCE_US, "us")
    assert part.resp == AxiResp.SLVERR
    assert await ports.read(PIECE) == 0
    await _run(ports, reload_steps(NEW))
    await _check_exact(ports, _new_outputs(ports))
