"""Top module of a board project: UART bridge, AXI wrapper of the design, clock and pins.

A request holds the inputs of one tensor, or of several if the design needs several in flight. Each
input has a segment of the request, and each output one of the reply, in the order of the ports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chop.errors import HardwareError
from chop.hw.boards.board_table import Board
from chop.hw.design.design import Interface
from chop.hw.design.stream import Stream
from chop.hw.interfaces.axi_wrapper import LITE_PORTS, instance_text, transfer_bytes

LONGEST_PAYLOAD = 65_535
"""Bytes that the length field of a frame can state."""
LEDS = ("led_busy", "led_error")


@dataclass(frozen=True)
class PortSegment:
    """Bytes of one port in a payload."""

    port: str
    beats: int
    """Transfers of one tensor."""
    transfers: int
    """Transfers of a payload."""
    transfer_bytes: int
    offset: int

    @property
    def size(self) -> int:
        """Bytes of the segment."""
        return self.transfers * self.transfer_bytes


def segments(streams: Mapping[str, Stream], tensors: int) -> tuple[PortSegment, ...]:
    """Return the segments of a payload with `tensors` tensors of each stream."""
    rows: list[PortSegment] = []
    offset = 0
    for name, stream in streams.items():
        count, size = tensors * stream.beats, transfer_bytes(stream)
        rows.append(PortSegment(name, stream.beats, count, size, offset))
        offset += rows[-1].size
    return tuple(rows)


@dataclass(frozen=True)
class Payloads:
    """Segments of the requests and of the replies of a design."""

    requests: tuple[PortSegment, ...]
    replies: tuple[PortSegment, ...]

    @property
    def request_bytes(self) -> int:
        """Bytes of a request."""
        return sum(segment.size for segment in self.requests)

    @property
    def reply_bytes(self) -> int:
        """Bytes of a reply."""
        return sum(segment.size for segment in self.replies)


def payloads(interface: Interface) -> Payloads:
    """Return the payloads of a design; raise for one that a UART cannot feed."""
    if interface.sent:
        names = ", ".join(interface.sent)
        raise HardwareError(
            f"board: the design reads weights from outside ({names}), which a UART cannot stream. "
            "Emit it with its weights in memories of the part."
        )
    tensors = interface.in_flight
    both = Payloads(segments(interface.inputs, tensors), segments(interface.outputs, tensors))
    for what, size in (("inputs", both.request_bytes), ("outputs", both.reply_bytes)):
        if size > LONGEST_PAYLOAD:
            raise HardwareError(
                f"board: the {what} of a tensor take {size} bytes. A frame holds at most "
                f"{LONGEST_PAYLOAD}."
            )
    return both


def top_name(interface: Interface) -> str:
    """Return the name of the top module."""
    return f"{interface.name}_board"


def top_text(interface: Interface, board: Board, baud: int, identity: int) -> str:
    """Return the top module; `identity` is the number by which the host knows the design."""
    both = payloads(interface)
    blocks = [
        f"// `{interface.name}` on the board {board.name}: {board.title}.",
        f"// Clock {board.clock_mhz:g} MHz, UART {baud} baud, 8 data bits, no parity, 1 stop bit.",
        "`default_nettype none\n",
        _module_line(interface, board),
        _signals(both),
        _clock(board),
        _bridge(board, baud, both, identity),
        *(_request(segment) for segment in both.requests),
        *(_reply(segment, number) for number, segment in enumerate(both.replies)),
        _design(interface, both),
        _constants(board, both),
        "endmodule\n\n`default_nettype wire\n",
    ]
    return "\n".join(blocks)


def _module_line(interface: Interface, board: Board) -> str:
    ports = [f"    input  wire logic {name}" for name in ("clk", "uart_rx")]
    outputs = ("uart_tx", *(name for name in LEDS if name in board.pins), *board.high)
    ports += [f"    output      logic {name}" for name in outputs]
    return f"module {top_name(interface)} (\n" + ",\n".join(ports) + "\n);\n"


def _signals(both: Payloads) -> str:
    lines = [
        "  logic clock, rst, resetn, go, clear;",
        "  logic [7:0] request;",
        "  logic [15:0] request_index, reply_index;",
        "  logic request_valid, reply_taken, is_busy, is_error;",
    ]
    for side, parts in (("s_axis", both.requests), ("m_axis", both.replies)):
        for part in parts:
            name = f"{side}_{part.port}"
            lines.append(f"  logic [{8 * part.transfer_bytes - 1}:0] {name}_tdata;")
            lines.append(f"  logic [{part.transfer_bytes - 1}:0] {name}_tkeep;")
            lines.append(f"  logic {name}_tlast, {name}_tvalid, {name}_tready;")
    for number in range(len(both.replies) + 1):
        lines.append(f"  logic [7:0] reply_{number};")
        lines.append(f"  logic is_full_{number};")
    lines += [f"  logic {_range(LITE_PORTS[name][0])}s_axil_{name};" for name in _LITE_OUTPUTS]
    return "\n".join(lines) + "\n"


_LITE_OUTPUTS = tuple(name for name, (_, is_input) in LITE_PORTS.items() if not is_input)


def _range(bits: int) -> str:
    return f"[{bits - 1}:0] " if bits > 1 else ""


_CLOCK = {"clk": "clock", "rst": "rst"}


def _clock(board: Board) -> str:
    pins = {"oscillator": "clk", "clk": "clock", "rst": "rst", "resetn": "resetn"}
    return instance_text("board_clock", "u_clock", {"HALVINGS": board.halvings}, pins)


def _bridge(board: Board, baud: int, both: Payloads, identity: int) -> str:
    parameters = {
        "CLOCKS": board.clocks_per_bit(baud),
        "IN_BYTES": both.request_bytes,
        "OUT_BYTES": both.reply_bytes,
        "TIMEOUT": board.timeout_cycles,
        "ID": f"32'h{identity:08x}",
        "LED_ON": f"1'b{int(board.led_on)}",
    }
    last = len(both.replies)
    pins = {name: name for name in ("uart_rx", "uart_tx", "request", "request_valid")}
    pins |= {name: name for name in ("request_index", "go", "clear", "reply_taken", "reply_index")}
    pins |= {"is_full": f"is_full_{last}", "reply": f"reply_{last}"}
    pins |= {"led_busy": "is_busy", "led_error": "is_error"}
    return instance_text("uart_bridge", "u_bridge", parameters, _CLOCK | pins)


def _request(part: PortSegment) -> str:
    parameters = {
        "BYTES": part.transfer_bytes,
        "TRANSFERS": part.transfers,
        "BEATS": part.beats,
        "OFFSET": part.offset,
    }
    pins = {"payload": "request", "payload_valid": "request_valid"}
    pins |= {"payload_index": "request_index", "go": "go"}
    ends = ("tdata", "tkeep", "tlast", "tvalid", "tready")
    pins |= {f"m_axis_{end}": f"s_axis_{part.port}_{end}" for end in ends}
    return instance_text("frame_to_stream", f"u_{part.port}", parameters, _CLOCK | pins)


def _reply(part: PortSegment, number: int) -> str:
    parameters = {
        "BYTES": part.transfer_bytes,
        "TRANSFERS": part.transfers,
        "OFFSET": part.offset,
    }
    pins = {
        f"s_axis_{end}": f"m_axis_{part.port}_{end}" for end in ("tdata", "tvalid", "tready")
    } | {
        "is_full_before": f"is_full_{number}",
        "is_full": f"is_full_{number + 1}",
        "clear": "clear",
        "payload_taken": "reply_taken",
        "payload_index": "reply_index",
        "payload_before": f"reply_{number}",
        "payload": f"reply_{number + 1}",
    }
    return instance_text("stream_to_frame", f"u_{part.port}", parameters, _CLOCK | pins)


def _design(interface: Interface, both: Payloads) -> str:
    """Return the AXI wrapper; its control port is idle, so that the design runs."""
    pins = {"aclk": "clock", "aresetn": "resetn"}
    for name, (bits, is_input) in LITE_PORTS.items():
        pins[f"s_axil_{name}"] = f"{bits}'b0" if is_input else f"s_axil_{name}"
    for side, parts in (("s_axis", both.requests), ("m_axis", both.replies)):
        for part in parts:
            for end in ("tdata", "tkeep", "tlast", "tvalid", "tready"):
                pins[f"{side}_{part.port}_{end}"] = f"{side}_{part.port}_{end}"
    return instance_text(f"{interface.name}_axi", "u_design", {}, pins)


def _constants(board: Board, both: Payloads) -> str:
    lines = ["  assign is_full_0 = 1'b1;", "  assign reply_0 = 8'h0;"]
    lines += [f"  assign {name} = 1'b1;" for name in board.high]
    signals = dict(zip(LEDS, ("is_busy", "is_error"), strict=True))
    lines += [f"  assign {led} = {signals[led]};" for led in LEDS if led in board.pins]
    unused = [signal for led, signal in signals.items() if led not in board.pins]
    unused += [f"m_axis_{part.port}_{end}" for part in both.replies for end in ("tkeep", "tlast")]
    unused += [f"s_axil_{name}" for name in _LITE_OUTPUTS]
    lines.append(f"\n  wire logic unused_ok = &{{1'b0, {', '.join(unused)}}};\n")
    return "\n".join(lines)
