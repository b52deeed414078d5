"""Proof harnesses: the module under proof, its free inputs, and the laws of its folder.

`laws.svh` is the body of the harness, and the instance of the module, `dut`, follows it. The
generated part before it declares

- every parameter of the module, with the sizes of the proof, and short names for the long ones
  (`SHORT`: `IN_WIDTH` is DATA_IN_0_PRECISION_0);
- sizes of the proof that are no parameters of the module, as `localparam`;
- the module's inputs as free inputs of the harness, and its outputs as signals. An input that
  `laws.svh` declares itself is not free: the laws drive it;
- signals by the names of the ports of `stream_laws`, `pass_laws` and `tensor_laws` (`DEFAULTS`), so
  that those are connected by `.*`. A signal that `laws.svh` declares itself replaces the default;
- the macro `OUT_FORMAT`, the parameters of `spec_cast` for the format of data_out_0.
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

from chop.hw.design.claims import Proof

SHARED = Path(__file__).parent / "harness"
"""Folder of the modules that harnesses share."""
_PORTS = {"IN": "DATA_IN_0", "IN_1": "DATA_IN_1", "W": "WEIGHT", "B": "BIAS", "OUT": "DATA_OUT_0"}
_NUMBERS = {
    "WIDTH": "PRECISION_0",
    "FRAC": "PRECISION_1",
    "SIGNED": "IS_SIGNED",
    "EXPONENT": "EXPONENT_WIDTH",
    "LANES": "PARALLELISM_DIM_0",
    "SIZE": "TENSOR_SIZE_DIM_0",
    "BEATS": "BEATS",
}
SHORT = {
    **{f"{p}_{n}": f"{_PORTS[p]}_{_NUMBERS[n]}" for p, n in product(_PORTS, _NUMBERS)},
    "ROUNDING": "DATA_OUT_0_ROUNDING",
    "OVERFLOW": "DATA_OUT_0_OVERFLOW",
    "WIDTH": "DATA_WIDTH",
    "COLUMNS": "DATA_IN_0_TENSOR_SIZE_DIM_1",
    "ROWS": "DATA_IN_0_TENSOR_SIZE_DIM_2",
    "KERNEL_COLUMNS": "KERNEL_SIZE_DIM_0",
    "KERNEL_ROWS": "KERNEL_SIZE_DIM_1",
    "STRIDE_COLUMNS": "STRIDE_DIM_0",
    "STRIDE_ROWS": "STRIDE_DIM_1",
    "PAD_COLUMNS": "PADDING_DIM_0",
    "PAD_ROWS": "PADDING_DIM_1",
}
"""Long names of parameters, by the short ones that sizes and laws use."""
DEFAULTS = (
    ("is_lawful", "1'b1"),
    ("is_moving", "1'b1"),
    ("ends", "1'b1"),
    ("is_fed", "data_in_0_valid"),
    ("push", "data_in_0_valid && data_in_0_ready"),
    ("source_valid", "data_in_0_valid"),
    ("source_ready", "data_in_0_ready"),
    ("expected", "data_in_0"),
    ("head", None),
    ("due", "head"),
    ("data", "data_out_0"),
    ("valid", "data_out_0_valid"),
    ("ready", "data_out_0_ready"),
    ("taken", "data_in_0_valid && data_in_0_ready"),
    ("beat", "data_in_0"),
    ("place", None),
)
"""Signals and their values; None: a law module drives it."""
_WIDTHS = {
    **dict.fromkeys(("expected", "beat"), "$bits(data_in_0)"),
    **dict.fromkeys(("head", "due", "data"), "$bits(data_out_0)"),
    "place": "8",
}
_FORMAT = ("OUT_WIDTH", "OUT_FRAC", "OUT_SIGNED", "ROUNDING", "OVERFLOW")
_HEADER = re.compile(r"^module \w+ #\((?P<parameters>.*?)\n\) \((?P<ports>.*?)\n\);", re.S | re.M)
_PARAMETER = re.compile(r"(\bparameter\b[^=]*?(\w+)\s*=)(.*?)(,?\s*)$", re.M)
_PORT = re.compile(r"(input|output)\s+(?:wire\s+)?logic\s+((?:\[[^\]]*\]\s*)*)(\w+)")


def harness_text(proof: Proof, rtl: str) -> str:
    """Return the harness `prove_<module>` of the module whose SystemVerilog is `rtl`."""
    header = _HEADER.search(re.sub(r"//.*", "", rtl))
    assert header, f"{proof}: no module header"
    laws = proof.text.read_text()
    names = [match[2] for match in _PARAMETER.finditer(header["parameters"])]
    chosen = {**proof.sizes, **proof.parameters}.items()
    long = {short: name for short, name in SHORT.items() if name in names and short not in names}
    sizes = {long.get(name, name): value for name, value in chosen}
    parameters = _PARAMETER.sub(
        lambda match: f"{match[1]} {sizes.get(match[2], match[3])}{match[4]}", header["parameters"]
    )
    ports = _PORT.findall(header["ports"])
    missing = {"clk", "rst"} - {name for *_, name in ports}
    inputs = [("", name) for name in sorted(missing)]
    inputs += [(width, name) for way, width, name in ports if way == "input"]
    lines = [
        "`default_nettype none",
        "`define OUT_FORMAT " + ", ".join(f".{name}({name})" for name in _FORMAT),
        f"module prove_{proof.module} #({parameters}) (",
        *(f"input wire logic {w}{name}," for w, name in inputs if not _declares(laws, name)),
        "output logic [2:0] broken);",
        *(f"localparam {k} = {v};" for k, v in sizes.items() if k not in names),
        *(f"localparam {k} = {v};" for k, v in long.items()),
        *(f"logic {width}{name};" for way, width, name in ports if way == "output"),
        *_defaults({name for *_, name in ports}, laws),
        laws,
        f"{proof.module} #({', '.join(f'.{n}({n})' for n in names)}) dut (.*);",
        "endmodule",
        "`default_nettype wire\n",
    ]
    return "\n".join(lines)


def _defaults(ports: set[str], laws: str) -> list[str]:
    """Return the declarations of the signals that the laws leave to their defaults."""
    lines, names = [], {"bits", "b1", *ports}
    for name, value in DEFAULTS:
        width = f"[{_WIDTHS[name]}-1:0] " if name in _WIDTHS else ""
        reads = set(re.findall(r"\b[a-z]\w+", f"{width} {value or ''}"))
        if name not in ports and not _declares(laws, name) and reads <= names:
            names.add(name)
            signal = f"logic {width}{name}"
            lines.append(f"wire {signal} = {value};" if value else f"{signal};")
    return lines


def _declares(laws: str, name: str) -> bool:
    """Return True if the laws declare the signal `name`."""
    return re.search(rf"^(?:wire )?logic\b[^;=]*\b{name}\s*[,;=]", laws, re.M) is not None
