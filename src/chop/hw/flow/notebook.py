"""Designs as notebooks show them: the dataflow, and a row for each stage."""

from __future__ import annotations

from dataclasses import asdict

from chop import notebook
from chop.hw.design.design import Design
from chop.hw.flow.hardware_report import bottleneck, diagram, stage_rows
from chop.hw.flow.synth import Area
from chop.hw.sim.verdict import Verdict


@notebook.view(Design)
def design_html(design: Design, verdict: Verdict | None = None, area: Area | None = None) -> str:
    """Return the drawn pipeline, its verdict and area if they are known, and its stages."""
    pace = f"a tensor every {design.cycles():,} cycles"
    title = notebook.heading(design.name, pace, f"held by {bottleneck(design)}")
    notes = [notebook.note(str(each)) for each in (verdict, area) if each is not None]
    picture = diagram(design)
    drawn = picture[picture.index("<svg") :]
    rows = [{**asdict(row), "utilisation": f"{row.utilisation:.0%}"} for row in stage_rows(design)]
    return notebook.shown(title, *notes, drawn, notebook.table(rows))
