"""Host program of a board project: sends inputs over a serial port and checks the outputs.

    python host.py /dev/ttyUSB0

It needs Python alone; with pyserial it runs on every system. `board.json` beside it describes the
design, and the test vectors lie in `../test`. In programs:

    with BoardLink("/dev/ttyUSB0") as board:
        reply = board.infer(request)

A request and its reply are frames: 5a a5, kind, number, length (2 bytes), payload, CRC-32 of kind
to payload. Numbers are sent the lowest byte first. A frame that was damaged or lost is sent again:
an inference has no side effects.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import struct
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
SYNC = b"\x5a\xa5"
IDENTIFY, INFER = 0, 1
IDENTITY, RESULT, DAMAGED = 0x80, 0x81, -1
REFUSALS = {0xE1: "damaged request", 0xE2: "unknown request", 0xE3: "incomplete request"}
HEADER, CHECK = 6, 4
QUIET_SHARE = 0.2
"""Silence after which the rest of a reply counts as lost, as a share of the time to wait for it."""


class BoardError(RuntimeError):
    """A board that does not answer, or answers with another design."""


def frame(kind: int, number: int, payload: bytes) -> bytes:
    """Return a frame."""
    body = struct.pack("<BBH", kind, number, len(payload)) + payload
    return SYNC + body + struct.pack("<I", zlib.crc32(body))


class SerialLine:
    """A serial port, opened with pyserial or, without it, as a file."""

    def __init__(self, port: str, baud: int) -> None:
        try:
            import serial  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError:
            self.file, self.port = _open_terminal(port, baud), None
        else:
            self.port = serial.Serial(port, baud, timeout=0)
            self.file = self.port.fileno() if os.name == "posix" else -1

    def write(self, data: bytes) -> None:
        """Send all bytes."""
        if self.port is not None:
            self.port.write(data)
            return
        while data:
            data = data[os.write(self.file, data) :]

    def read(self, seconds: float) -> bytes:
        """Return the bytes that have arrived; wait for the first at most `seconds`."""
        if self.port is not None:
            self.port.timeout = seconds
            first: bytes = self.port.read(1)
            return first + bytes(self.port.read(self.port.in_waiting))
        ready, _, _ = select.select([self.file], [], [], seconds)
        return os.read(self.file, 4096) if ready else b""

    def close(self) -> None:
        """Close the port."""
        if self.port is not None:
            self.port.close()
        else:
            os.close(self.file)


def _open_terminal(port: str, baud: int) -> int:
    """Open a serial port as a raw terminal: every byte passes unchanged."""
    import termios
    import tty

    file = os.open(port, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(file)
    settings = termios.tcgetattr(file)
    speed = getattr(termios, f"B{baud}", None)
    if speed is None:
        raise BoardError(f"{port}: this system has no {baud} baud. Install pyserial.")
    settings[4] = settings[5] = speed
    termios.tcsetattr(file, termios.TCSANOW, settings)
    return file


class BoardLink:
    """A board on a serial port. `faults` counts the frames that were sent again, by cause."""

    def __init__(
        self, port: str, folder: Path = FOLDER, *, timeout: float = 1.0, attempts: int = 10
    ) -> None:
        self.facts: dict[str, Any] = json.loads((folder / "board.json").read_text())
        self.timeout, self.attempts = timeout, attempts
        self.faults: Counter[str] = Counter()
        self.number = 0
        self.received = b""
        self.line = SerialLine(port, self.facts["baud"])

    def __enter__(self) -> BoardLink:
        return self

    def __exit__(self, *_: object) -> None:
        self.line.close()

    def identify(self) -> int:
        """Check that the board holds this design; return the cycles of its last inference."""
        identity, cycles = struct.unpack("<II", self._ask(IDENTIFY, b"", IDENTITY, 8))
        if f"{identity:08x}" != self.facts["id"]:
            raise BoardError(
                f"the board holds the design {identity:08x}, this project is {self.facts['id']}. "
                "Load its bitstream: make prog."
            )
        return int(cycles)

    def infer(self, request: bytes) -> bytes:
        """Return the bytes of the outputs for the bytes of the inputs."""
        if len(request) != self.facts["request_bytes"]:
            raise BoardError(
                f"a request has {self.facts['request_bytes']} bytes, got {len(request)}."
            )
        return self._ask(INFER, request, RESULT, self.facts["reply_bytes"])

    def _ask(self, kind: int, payload: bytes, status: int, size: int) -> bytes:
        """Send a request until its reply comes; return the payload of the reply."""
        self.number = (self.number + 1) % 256
        for _ in range(self.attempts):
            self.received = b""
            self.line.write(frame(kind, self.number, payload))
            reply = self._reply(status, size)
            if isinstance(reply, bytes):
                return reply
            self.faults[reply] += 1
        raise BoardError(f"no answer after {self.attempts} attempts: {dict(self.faults)}.")

    def _reply(self, status: int, size: int) -> bytes | str:
        """Return the payload of the reply, or why the request must be sent again."""
        deadline = time.monotonic() + self.timeout
        while True:
            if (parsed := self._parsed()) is None:
                if not self._receive(deadline):
                    return "incomplete reply" if self.received else "no reply"
                continue
            code, number, payload = parsed
            if code in REFUSALS:
                return REFUSALS[code]
            if code == DAMAGED:
                return "damaged reply"
            if (code, number, len(payload)) == (status, self.number, size):
                return payload  # other frames reply to a request that was sent twice

    def _receive(self, deadline: float) -> bool:
        """Wait for more bytes; return False if none come in time."""
        left = deadline - time.monotonic()
        quiet = QUIET_SHARE * self.timeout if self.received else left
        more = self.line.read(max(0.0, min(left, quiet)))
        self.received += more
        return bool(more)

    def _parsed(self) -> tuple[int, int, bytes] | None:
        """Remove the next frame from the received bytes and return it; None if bytes are missing.

        A damaged frame has the status DAMAGED; the search goes on after its first bytes.
        """
        start = self.received.find(SYNC)
        data = self.received[start:]
        if start < 0 or len(data) < HEADER:
            return None
        status, number, size = struct.unpack("<BBH", data[2:HEADER])
        end = HEADER + size + CHECK
        is_possible = size <= max(self.facts["reply_bytes"], 8)
        if is_possible and len(data) < end:
            return None
        body, check = data[2 : end - CHECK], data[end - CHECK : end]
        if is_possible and struct.pack("<I", zlib.crc32(body)) == check:
            self.received = data[end:]
            return status, number, body[4:]
        self.received = data[len(SYNC) :]
        return DAMAGED, 0, b""


def vectors(facts: dict[str, Any], side: str, folder: Path = FOLDER) -> Iterator[bytes]:
    """Yield the payloads of the test vectors: those of "requests" or those of "replies"."""
    parts = []
    for segment in facts[side]:
        text = (folder.parent / "test" / f"{segment['port']}.mem").read_text()
        size, count = segment["transfer_bytes"], segment["transfers"]
        words = [int(word, 16).to_bytes(size, "little") for word in text.split()]
        parts.append([b"".join(words[k : k + count]) for k in range(0, len(words), count)])
    for row in zip(*parts, strict=True):
        yield b"".join(row)


def check(board: BoardLink, count: int | None = None, folder: Path = FOLDER) -> tuple[int, int]:
    """Send test vectors, from the first again after the last; return all and wrong inferences."""
    requests = list(vectors(board.facts, "requests", folder))
    replies = list(vectors(board.facts, "replies", folder))
    total = len(requests) if count is None else count
    wrong = 0
    for k in range(total):
        wrong += board.infer(requests[k % len(requests)]) != replies[k % len(replies)]
    return total, wrong


def main(arguments: list[str] | None = None) -> int:
    """Check a board; the exit code is 1 if an output is wrong and 2 if the board fails."""
    parser = argparse.ArgumentParser(description="Send test inputs to a board; check its outputs.")
    parser.add_argument("port", help="serial port, such as /dev/ttyUSB0 or COM3")
    parser.add_argument("--count", type=int, help="inferences (default: each test vector once)")
    parser.add_argument("--timeout", type=float, default=1.0, help="seconds to wait for a reply")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    try:
        with BoardLink(options.port, timeout=options.timeout) as board:
            board.identify()
            start = time.monotonic()
            total, wrong = check(board, options.count)
            seconds = time.monotonic() - start
            cycles = board.identify()
    except (BoardError, OSError) as error:
        print(f"host.py: {error}", file=sys.stderr)
        return 2
    record = {"inferences": total, "wrong": wrong, "faults": dict(board.faults)}
    record |= {"latency": cycles, "per_second": round(total / seconds, 1)}
    print(json.dumps(record) if options.json else summary(record))
    return 1 if wrong else 0


def summary(record: dict[str, Any]) -> str:
    """Return the result in words."""
    faults = record["faults"]
    listed = "".join(f", {number} {cause}" for cause, number in sorted(faults.items()))
    right = record["inferences"] - record["wrong"]
    return (
        f"{right} of {record['inferences']} inferences right, {record['per_second']} per second\n"
        f"{sum(faults.values())} faults on the line{listed}\n"
        f"{record['latency']} cycles from the request to the whole result"
    )


if __name__ == "__main__":
    sys.exit(main())
