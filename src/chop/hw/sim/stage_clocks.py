"""The top module for long runs: each stage has its own clock, and sleeps while it can.

In a folded design most stages stand still in most cycles. An edge that left the whole state of a
stage unchanged would do so again while the stage's inputs stay the same, so the driver leaves such
edges out: every value and every cycle stay the same. The copy differs from the emitted module in
the clocks alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from chop.hw.sim.sim_top import SimTop

_INSTANCE = re.compile(r"^  (\w+) (?:#\(\n.*?\n  \) )?(u_\w+) \(\n(.*?)\n  \);\n", re.M | re.S)
_PIN = re.compile(r"\.(\w+)\s*\(([^()]*)\)")
_NET = re.compile(r"(?<!')\b[a-z_]\w*")
_STREAM = re.compile(r"^  logic (?:\[\d+:0\] )?(\w+_stream)\b", re.M)
_DECLARED = re.compile(r"^  logic (?:\[\d+:0\] )?\w+_stream(?:_valid, \w+_ready)?;$", re.M)
_FIELD = re.compile(
    r"^\s*(VlUnpacked<.*>|VlWide<\d+>|[CSIQ]Data)(?:/\*[\d:]+\*/)? top__DOT__(\w+);", re.M
)
_TABLE_FILE = re.compile(r"\$readmemh\(\w+, (\w+)\)")
_SHARED = ("clk", "rst")
_FOLLOWERS = ("stream_fork", "fifo")
"""Modules too small to gain by their own clock: they share that of the module that feeds them."""


_Pins: TypeAlias = Mapping[str, Sequence[tuple[str, str]]]
"""Instance -> its pins, each with a net."""


@dataclass(frozen=True)
class Domain:
    """Instances that follow one clock, the nets that they read and the nets that they drive."""

    clock: str
    instances: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class ClockedTop(SimTop):
    """The text of the top module with a clock for each stage."""

    ports: frozenset[str] = frozenset()
    domains: tuple[Domain, ...] = ()


def clocked_top(text: str) -> ClockedTop:
    """Return the top module `text` with a clock for each stage and the memories that feed it."""
    ports = frozenset(re.findall(r"(\w+),?$", text.partition("\n);\n")[0], re.M))
    domains = _domains(text, ports)
    clock = {name: domain.clock for domain in domains for name in domain.instances}
    text = _INSTANCE.sub(
        lambda match: re.sub(r"(\.clk\s*)\(clk\)", rf"\1({clock[match[2]]})", match[0]), text
    )
    text = _DECLARED.sub(
        lambda match: re.sub(r"(?=[,;])", " /*verilator public_flat_rd*/", match[0]), text
    )
    head = "".join(f",\n    input  wire logic {domain.clock}" for domain in domains)
    text = text.replace("\n);\n", f"{head}\n);\n", 1)
    return ClockedTop(text, (), (), ports=ports, domains=domains)


def _pins(text: str) -> list[tuple[str, str]]:
    """Return the pins of an instance, once for each net that they are connected to."""
    return [
        (pin, net)
        for pin, expression in _PIN.findall(text)
        for net in _NET.findall(expression)
        if net not in _SHARED
    ]


def _domains(text: str, ports: frozenset[str]) -> tuple[Domain, ...]:
    """Group instances that are connected by more than streams, and followers with a stage."""
    streams = [name + end for name in _STREAM.findall(text) for end in ("", "_valid", "_ready")]
    outer = ports.union(streams)
    instances = _INSTANCE.findall(text)
    pins = {name: _pins(body) for _, name, body in instances}
    followers = {name for module, name, _ in instances if module in _FOLLOWERS}
    group = {name: name for name in pins}
    for one, other in [*_tied(pins, outer), *_fed(pins, followers)]:
        before, now = group[one], group[other]
        group = {name: before if root == now else root for name, root in group.items()}
    members: dict[str, list[str]] = {}
    for name, root in group.items():
        members.setdefault(root, []).append(name)
    return tuple(
        _domain(f"clk_{k}", names, [pin for name in names for pin in pins[name]], outer)
        for k, names in enumerate(members.values())
    )


def _tied(pins: _Pins, outer: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of instances with a common net that is no stream."""
    owner: dict[str, str] = {}
    for name, connected in pins.items():
        for net in (net for _, net in connected if net not in outer):
            yield owner.setdefault(net, name), name


def _fed(pins: _Pins, followers: set[str]) -> Iterator[tuple[str, str]]:
    """Yield each follower with the instance that drives its data."""
    drivers = {
        net: name
        for name, connected in pins.items()
        for pin, net in connected
        if pin.startswith("data_out") and pin.endswith("_valid")
    }
    for name in followers:
        for pin, net in pins[name]:
            if pin.startswith("data_in") and pin.endswith("_valid") and net in drivers:
                yield drivers[net], name


def _domain(
    clock: str, names: list[str], pins: list[tuple[str, str]], outer: frozenset[str]
) -> Domain:
    """Return a domain; nets that it drives itself are no inputs of it.

    `ready` enters at data_out pins and leaves at all others.
    """
    inputs: dict[str, None] = {}
    outputs: dict[str, None] = {}
    for pin, net in pins:
        comes_in = net in outer and pin.startswith("data_out") == pin.endswith("_ready")
        (inputs if comes_in else outputs)[net] = None
    return Domain(clock, tuple(names), tuple(n for n in inputs if n not in outputs), (*outputs,))


# -- C++ -------------------------------------------------------------------------------------------


@dataclass
class _DomainState:
    """Fields of the verilated module that an edge of a domain may change.

    `runs`: first and last field of each contiguous run.
    """

    runs: list[tuple[str, str]]
    memories: list[str]


def member(name: str) -> str:
    """Return the C++ name that Verilator gives the signal `name`.

    >>> member("a__b")
    'a___05Fb'
    """
    return name.replace("__", "___05F")


def model_members(top: ClockedTop, header: str, sources: Iterable[str]) -> tuple[str, str]:
    """Return code for the driver: the rows of domains, and the members of the model.

    `sources`: the texts of all modules, which show the memories that are never written.
    """
    tables = {name for text in sources for name in _TABLE_FILE.findall(text)}
    states = _states(top, header, tables)
    rows, stored, raised, lowered, cases = [], [], [], [], []
    for k, (domain, state) in enumerate(zip(top.domains, states, strict=True)):
        places = [
            f"top.{member(net)}" if net in top.ports else f"root.top__DOT__{member(net)}"
            for net in domain.inputs
        ]
        names = [f"kept_{k}_{j}" for j in range(len(places))]
        pairs = list(zip(places, names, strict=True))
        changed = " | ".join(f"differs({place}, {name})" for place, name in pairs) or "false"
        rows.append(f"{{{_spans(state.runs)}, {_spans([(m, m) for m in state.memories])}}}")
        stored += [
            f"std::remove_reference_t<decltype({place})> {name}{{}};" for place, name in pairs
        ]
        clock = member(domain.clock)
        raised.append(f"top.{clock} = !(is_asleep[{k}] &= !({changed}));")
        lowered.append(f"top.{clock} = 0;")
        cases.append(f"case {k}: {' '.join(f'{n} = {p};' for p, n in pairs)} break;")
    table = "".join(f"        {row},\n" for row in rows)
    members = [
        "Vtop___024root& root = *top.rootp;",
        *stored,
        _method("raise(uint8_t* is_asleep)", raised),
        _method("lower()", lowered),
        _method("keep_inputs(size_t domain)", ["switch (domain) {", *cases, "}"]),
    ]
    return f"    domains = {{\n{table}    }};\n", "".join(f"  {line}\n" for line in members)


def _method(head: str, lines: list[str]) -> str:
    return f"void {head} override {{\n" + "".join(f"    {line}\n" for line in lines) + "  }"


def _spans(runs: list[tuple[str, str]]) -> str:
    spans = [f"span(root.top__DOT__{first}, root.top__DOT__{last})" for first, last in runs]
    return "{" + ", ".join(spans) + "}"


def _states(top: ClockedTop, header: str, tables: set[str]) -> list[_DomainState]:
    """Return the state of each domain, also registers named after a net outside."""
    owner = {
        member(name): k for k, d in enumerate(top.domains) for name in (*d.instances, *d.outputs)
    }
    states = [_DomainState([], []) for _ in top.domains]
    before = None
    for kind, name in _FIELD.findall(header):
        owning = owner.get(name.split("__DOT__")[0])
        is_memory = kind.startswith("VlUnpacked")
        if owning is not None and is_memory and name.split("__DOT__")[-1] not in tables:
            states[owning].memories.append(name)
        if owning is not None and not is_memory:
            runs = states[owning].runs
            begins = runs.pop()[0] if before == owning else name
            runs.append((begins, name))
        before = None if is_memory else owning
    return states
