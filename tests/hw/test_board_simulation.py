"""Whole boards in simulation: UART bits in, UART bits out, the emitted host program outside."""

import os
import subprocess
import sys
import threading
import time
import zlib

import numpy as np
import pytest
import torch
from board_designs import annotated, emitted, host_program, one_beat, two_ports
from designs import mlp
from torch import nn

from chop.actions.hardware import emit_hardware
from chop.actions.simulation import simulate
from chop.errors import HardwareError
from chop.hw.arith.golden import Fixed
from chop.hw.boards.board_files import emit_board
from chop.hw.boards.board_sim import running_board, simulate_board
from chop.hw.boards.board_table import get_board
from chop.hw.design.stream import Stream
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass
from chop.passes.graph.transforms import quantize_transform_pass

SIMULATED = ("verilator", "g++")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small design on a board, with 20 test vectors."""
    return emitted(one_beat(), tmp_path_factory.mktemp("small"), tensors=20)


@pytest.mark.sim(*SIMULATED)
def test_the_host_program_gets_every_output_and_the_latency(small):
    run = simulate_board(small)
    assert (run.inferences, run.wrong, run.injected, run.faults) == (20, 0, 0, {})
    assert 2 <= run.latency < 100
    assert str(run).startswith("20 of 20 inferences right over the UART")


@pytest.mark.sim(*SIMULATED)
def test_damaged_and_lost_bytes_are_noticed_and_sent_again(small):
    run = simulate_board(small, count=40, fault_rate=0.006, seed=4)
    assert run.wrong == 0 and run.inferences == 40
    assert run.injected >= 3 and sum(run.faults.values()) >= 2


@pytest.mark.sim(*SIMULATED)
def test_a_board_with_another_design_is_refused(small, tmp_path):
    other = emitted(one_beat(Stream((3,), 3, one_beat().inputs["data_in_0"].format)), tmp_path)
    with running_board(small) as (port, _):
        done = subprocess.run(
            [sys.executable, "-B", str(other / "board/host.py"), port],
            capture_output=True, text=True,
        )  # fmt: skip
    assert done.returncode == 2 and "Load its bitstream: make prog." in done.stderr


DESIGNS = {
    "two inputs and outputs": two_ports,
    "several beats": lambda: mlp((8, 16, 4), (4, 4, 2)),
    "one byte": one_beat,
}


@pytest.mark.slow
@pytest.mark.sim(*SIMULATED)
@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize("board", ["icebreaker", "arty-a7-35"])
def test_designs_are_right_on_boards_with_other_clocks(tmp_path, name, board):
    hardware = emitted(DESIGNS[name](), tmp_path, tensors=30, board=board)
    assert simulate_board(hardware, fault_rate=0.002, seed=1).require_right().inferences == 30
    assert simulate(hardware.parent, simulator="board").wrong == 0


@pytest.mark.slow
@pytest.mark.sim(*SIMULATED)
def test_a_thousand_inferences_equal_pytorch_over_a_bad_line(tmp_path):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    rows = torch.randn(1000, 8)
    config = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 5, "weight_width": 8,
              "weight_frac_width": 6, "bias_width": 8, "bias_frac_width": 6}  # fmt: skip
    graph = annotated(model, rows[:2])
    graph, _ = quantize_transform_pass(graph, {"by": "type", "default": {"config": config}})
    graph, _ = add_hardware_metadata_analysis_pass(graph, {"max_parallelism": 4})
    lowered, _ = emit_hardware(graph, tmp_path, inputs=rows)
    emit_board(tmp_path / "hardware", get_board("ulx3s"))
    expected = _codes(graph.model(rows), lowered.design.output_streams()["data_out_0"])
    host = host_program(tmp_path / "hardware")
    with (
        running_board(tmp_path / "hardware", fault_rate=0.001, seed=2) as (port, ended),
        host.BoardLink(port, timeout=4.0) as board,
    ):
        requests = list(host.vectors(board.facts, "requests"))
        replies = [board.infer(request) for request in requests]
    stream = lowered.design.output_streams()["data_out_0"]
    assert len(replies) == 1000 and np.array_equal(_decoded(replies, stream), expected)
    assert ended["injected"] > 20 and sum(board.faults.values()) > 10


def _codes(outputs, stream):
    """Return the integers of the outputs of a PyTorch model."""
    scaled = outputs.detach().double() * 2.0**stream.format.frac_width
    assert torch.equal(scaled, scaled.round())
    return scaled.long().numpy()


def _decoded(replies, stream):
    size = -(-stream.beat_width // 8)
    words = [
        int.from_bytes(reply[k : k + size], "little")
        for reply in replies
        for k in range(0, len(reply), size)
    ]
    return stream.codes(words).reshape(len(replies), *stream.shape)


def requests(host):
    """Return bytes that arrive at a board, by the status of its reply and what they are."""
    infer, identify = host.frame(1, 7, b"\1\2\3"), host.frame(0, 7, b"")
    return {
        (0x80, "a request for the identity"): identify,
        (0x81, "a request for an inference"): infer,
        (0x81, "bytes before it"): b"\x00\x5a\x5a\xff\x5a" + infer,
        (0xE1, "a wrong checksum"): infer[:-1] + bytes([infer[-1] ^ 1]),
        (0xE1, "a wrong byte of the payload"): infer[:7] + bytes([infer[7] ^ 4]) + infer[8:],
        (0xE2, "another kind"): host.frame(2, 7, b"\1\2\3"),
        (0xE2, "another length"): host.frame(1, 7, b"\1\2"),
        (0xE2, "an identity with a payload"): host.frame(0, 7, b"\1\2\3"),
        (0xE3, "a request that is cut short"): infer[:-2],
        (0xE3, "a header that is cut short"): infer[:3],
    }


def statuses(hardware, seconds=60.0):
    """Return what `requests` expects and what the board of `hardware` replies in time."""
    host = host_program(hardware)
    asked = requests(host)
    replies = []
    with running_board(hardware) as (port, _), host.BoardLink(port, timeout=seconds) as link:
        for data in asked.values():
            link.received = b""
            link.line.write(data)
            deadline = time.monotonic() + seconds
            while (parsed := link._parsed()) is None and link._receive(deadline):
                pass
            replies.append(None if parsed is None else parsed[0])
    return [status for status, _ in asked], replies


@pytest.mark.sim(*SIMULATED)
def test_every_kind_of_request_has_its_status(small):
    expected, replies = statuses(small)
    assert replies == expected


MUTANTS = {
    "a wrong CRC is accepted": ("frame_receiver", "is_right      = crc == RESIDUE",
                                "is_right      = 1'b1 || crc == RESIDUE"),
    "the CRC of a reply misses a byte": ("frame_sender", "index_q > 16'd1", "index_q > 16'd2"),
    "a request that is cut short blocks the receiver": (
        "frame_receiver", "state_q > SECOND && wait_q", "1'b0 && wait_q"),
    "every length is allowed": ("frame_receiver", "length == 16'(LENGTH)", "length != '0"),
    "a second start is not seen": ("frame_receiver", "data != 8'h5a", "1'b1"),
    "bits are sampled at their end": ("uart_rx", "CLOCKS / 2 - 1", "CLOCKS - 1"),
    "the store is not cleared": ("uart_bridge", "clear     = is_result_q && !is_sending",
                                 "clear     = 1'b0 && !is_sending"),
    "the bytes of a word are not counted": ("stream_to_frame", "byte_q <= is_word_end",
                                            "byte_q <= !is_word_end"),
    "a request is stored one word late": ("frame_to_stream", "ADDRESS_WIDTH'(BYTES == 1)",
                                          "ADDRESS_WIDTH'(1)"),
}  # fmt: skip
"""Faults in the RTL of a board: module, text, replacement."""


@pytest.mark.slow
@pytest.mark.sim(*SIMULATED)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_of_the_bridge_is_noticed(tmp_path, name):
    hardware = emitted(one_beat(Stream((3,), 3, Fixed(8, 0))), tmp_path, tensors=10)
    module, old, new = MUTANTS[name]
    file = hardware / "board" / f"{module}.sv"
    assert file.read_text().count(old) == 1
    file.write_text(file.read_text().replace(old, new))
    expected, replies = statuses(hardware, 3.0)
    if replies == expected:
        with pytest.raises(HardwareError, match=r"of 10 inferences right|host program failed"):
            simulate_board(hardware, timeout=2.0).require_right()


# -- the host program against a board of a few lines of Python ---------------------------------


class FakeBoard:
    """A board on a pseudo-terminal that answers each request with the next of `answers`."""

    def __init__(self, answers):
        self.master, slave = os.openpty()
        self.port, self.answers, self.requests = os.ttyname(slave), list(answers), []
        self.slave = slave
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        for answer in self.answers:
            request = b""
            while len(request) < 13:
                request += os.read(self.master, 100)
            self.requests.append(request)
            os.write(self.master, answer(request))


@pytest.fixture
def host(tmp_path):
    """The host program of a design with requests of 3 bytes and replies of 3 bytes."""
    return host_program(emitted(one_beat(), tmp_path))


def right(host):
    return lambda request: host.frame(host.RESULT, request[3], b"abc")


def noise(data):
    return lambda request: data


ANSWERS = {
    "damaged reply": lambda h: lambda r: right(h)(r)[:-1] + b"\0",
    "incomplete reply": lambda h: lambda r: right(h)(r)[:-3],
    "no reply": lambda h: noise(b""),
    "damaged request": lambda h: noise(h.frame(0xE1, 0, b"")),
    "unknown request": lambda h: noise(h.frame(0xE2, 0, b"")),
    "incomplete request": lambda h: noise(h.frame(0xE3, 0, b"")),
}
"""Cause that the host counts -> an answer that has it."""


@pytest.mark.parametrize("cause", ANSWERS)
def test_the_host_sends_a_request_again_and_counts_the_cause(host, cause):
    fake = FakeBoard([ANSWERS[cause](host), right(host)])
    with host.BoardLink(fake.port, timeout=2.0) as board:
        assert board.infer(b"xyz") == b"abc"
    assert board.faults == {cause: 1} and fake.requests[0] == fake.requests[1]


HARMLESS = {
    "bytes before": lambda h: lambda r: b"\x5a\x00\xff" + right(h)(r),
    "a start that is none": lambda h: lambda r: b"\x5a\x5a\xa5"[:1] + right(h)(r),
    "a reply to another request": lambda h: lambda r: h.frame(h.RESULT, 99, b"old") + right(h)(r),
    "two replies": lambda h: lambda r: right(h)(r) * 2,
}


@pytest.mark.parametrize("name", HARMLESS)
def test_the_host_finds_the_reply_among_other_bytes(host, name):
    fake = FakeBoard([HARMLESS[name](host), right(host)])
    with host.BoardLink(fake.port, timeout=30.0) as board:
        assert [board.infer(b"xyz"), board.infer(b"xyz")] == [b"abc", b"abc"]
    assert not board.faults


def test_a_board_that_does_not_answer_is_an_error(host):
    fake = FakeBoard([])
    with (
        host.BoardLink(fake.port, timeout=0.02, attempts=2) as board,
        pytest.raises(host.BoardError, match=r"no answer after 2 attempts: \{'no reply': 2\}"),
    ):
        board.infer(b"xyz")
    assert host.main([fake.port, "--timeout", "0.01"]) == 2


def test_a_request_of_another_size_and_a_missing_port_are_errors(host, capsys):
    fake = FakeBoard([])
    with (
        host.BoardLink(fake.port) as board,
        pytest.raises(host.BoardError, match=r"has 3 bytes, got 2"),
    ):
        board.infer(b"xy")
    assert host.main(["/dev/none"]) == 2 and "No such file" in capsys.readouterr().err


def test_a_frame_is_what_the_documentation_says(host):
    body = bytes([1, 7, 3, 0]) + b"abc"
    assert host.frame(1, 7, b"abc") == b"\x5a\xa5" + body + zlib.crc32(body).to_bytes(4, "little")


def test_the_summary_names_each_cause(host):
    record = {"inferences": 5, "wrong": 1, "faults": {"no reply": 2}, "latency": 9}
    text = host.summary(record | {"per_second": 3.5})
    assert "4 of 5 inferences right, 3.5 per second" in text
    assert "2 faults on the line, 2 no reply" in text and "9 cycles" in text


def test_wrong_settings_and_a_missing_project_are_refused(tmp_path):
    with pytest.raises(HardwareError, match=r"'fault_rate' must be from 0 to below 1, got 2"):
        simulate_board(tmp_path, fault_rate=2)
    with pytest.raises(HardwareError, match=r"no board project. Write one: mase hw … --board NAME"):
        simulate_board(tmp_path)
