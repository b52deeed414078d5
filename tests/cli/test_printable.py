"""Names from files never reach the terminal as control characters."""

import io
import logging

import pytest

from chop.cli.console import Console
from chop.errors import ChopError, ExportError, HubError, RegistryError
from chop.log import PrintableFormatter
from chop.printable import CONTROLS, printable

NAMES = [
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "\r hidden",
    "\x9b2J",
    "\u202egnp.exe",
    "a\x00b",
    "\x7f",
]


@pytest.mark.parametrize("name", NAMES)
def test_no_line_of_a_console_has_a_control_character(name):
    out, err, log = io.StringIO(), io.StringIO(), io.StringIO()
    console = Console(out=out, err=err, log=log)
    console.say(name)
    console.table([{"name": name, name: 1}])
    console.note(name)
    console.fail(name)
    console.document({name: name})
    with console.progress(name) as progress:
        progress.to(1, name)
    for stream in (out, err, log):
        assert stream.getvalue() and not CONTROLS.search(stream.getvalue())


@pytest.mark.parametrize("kind", [ChopError, ExportError, HubError, RegistryError])
def test_no_error_has_a_control_character(kind):
    assert str(kind("tensor \x1b[31m")) == "tensor \\x1b[31m"


def test_no_log_line_has_a_control_character():
    record = logging.LogRecord("chop", logging.WARNING, "", 1, "layer %s", ("\x1b[2J",), None)
    assert PrintableFormatter("%(message)s").format(record) == "layer \\x1b[2J"


def test_text_of_any_script_stays_as_it_is():
    text = "Größe 模型 שלום\n\tline"
    assert printable(text) == text
