"""Report of a simulated decode engine: time per token by phase, and the share of bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chop.hw.decode.decode_cycles import PredictedRun
from chop.hw.decode.decode_emit import DecodeDesign
from chop.hw.decode.decode_sim import DecodeRun
from chop.hw.decode.decode_size import SizedEngine
from chop.hw.decode.memory_timing import BANDWIDTH_ONE, MemoryTiming


@dataclass(frozen=True)
class DecodeFacts:
    """Figures of a run, as plain numbers."""

    cycles_per_token: int
    tokens_per_second: float
    bandwidth_share: float
    """Beats read and written, as a share of those that the memory can move in the same cycles."""
    logits_compared: int
    phases: dict[str, int]

    def record(self) -> dict[str, Any]:
        """Return the figures for a result file."""
        return dict(vars(self))


def decode_facts(
    run: DecodeRun, predicted: PredictedRun, timing: MemoryTiming, mhz: float, compared: int
) -> DecodeFacts:
    """Return the figures of a run; a token is the last one, which has the longest cache."""
    result = run.results[-1]
    start = result.sent[-2] if len(result.sent) > 1 else result.accepted[-1]
    cycles = result.sent[-1] - start
    beats = (run.read_beats + run.written_beats) * BANDWIDTH_ONE / timing.bandwidth
    return DecodeFacts(
        cycles_per_token=cycles,
        tokens_per_second=mhz * 1e6 / cycles,
        bandwidth_share=beats / run.cycles,
        logits_compared=compared,
        phases=predicted.phases,
    )


def report_text(
    design: DecodeDesign,
    facts: DecodeFacts,
    timing: MemoryTiming,
    engine: SizedEngine,
    available: tuple[str, Mapping[str, int]] | None = None,
) -> str:
    """Return the report as Markdown; `available` has the name and the cells of a part."""
    options, shape = design.model.options, design.model.shape
    total = sum(facts.phases.values())
    rows = "".join(
        f"| {name} | {cycles} | {cycles / total:.1%} |\n"
        for name, cycles in sorted(facts.phases.items(), key=lambda row: -row[1])
    )
    return (
        "# Decode engine\n\n"
        f"{shape.layers} layers, hidden {shape.hidden}, {shape.heads} heads of {shape.head_dim}, "
        f"{shape.kv_heads} key heads, {shape.vocab} tokens. Weights "
        f"{options.weight_format.upper()}{options.weight_width}, cache MXINT{options.cache_width} "
        f"for {options.max_length} tokens, residual stream of {design.model.residual_width} "
        "bits.\n\n"
        f"Memory {timing.name}, {design.options.data_width} bits, engine clock {engine.mhz:g} MHz "
        "(assumed, not routed).\n\n"
        "| figure | value |\n|---|---|\n"
        f"| logits equal to PyTorch | {facts.logits_compared} of {facts.logits_compared} |\n"
        f"| cycles of the last token | {facts.cycles_per_token} |\n"
        f"| tokens per second at this clock | {facts.tokens_per_second:.1f} |\n"
        f"| share of memory bandwidth | {facts.bandwidth_share:.1%} |\n"
        f"| roofline, tokens per second with an empty cache | {engine.bound:.1f}, limited by the "
        f"{engine.limit} |\n"
        f"| memory, MB | {design.image.beats * design.options.data_width / 8e6:.1f} |\n\n"
        f"{_cells_text(engine, available)}\n"
        "Cycles of the first token by phase, equal in model and simulation:\n\n"
        f"| phase | cycles | share |\n|---|---|---|\n{rows}"
    )


def _cells_text(engine: SizedEngine, available: tuple[str, Mapping[str, int]] | None) -> str:
    """Return the table of cells, next to those of the part if one was given."""
    name, cells = available or ("", {})
    rows = "".join(
        f"| {kind.upper()} | {count} |" + (f" {cells[kind]} |\n" if cells else "\n")
        for kind, count in engine.area.cells().items()
    )
    more, line = (f" {name} |", "---|") if name else ("", "")
    head = f"| cells | estimate |{more}\n|---|---|{line}\n"
    return f"Cells of ECP5, estimated from measured engines:\n\n{head}{rows}"
