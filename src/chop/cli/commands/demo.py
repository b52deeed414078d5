"""`mase demo`: from scikit-learn's digits to hardware checked bit for bit, in about two minutes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from chop.cli.session import Session
from chop.cli.shared_options import OutputOptions

EXAMPLES = ("mase demo", "mase demo --trials 60 --synthesize --out out/long_demo")


@dataclass(frozen=True, kw_only=True)
class DemoConfig(OutputOptions):
    """Demonstration."""

    epochs: Annotated[
        float, "Epochs of the first training; half as many after pruning and quantisation."
    ] = 20.0
    tune_epochs: Annotated[float, "Epochs of each training inside a sweep."] = 2.0
    sparsity: Annotated[float, "Share of the weights to prune."] = 0.5
    trials: Annotated[int, "Number of trials of the search."] = 40
    tolerance: Annotated[float, "Accuracy that may be lost for fewer bytes."] = 0.03
    test_rows: Annotated[int, "Number of test images to evaluate and to simulate."] = 360
    synthesize: Annotated[bool, "Count the cells of the design, which takes longer."] = False
    fresh: Annotated[bool, "Repeat stages that are done."] = False
    seed: Annotated[int, "Seed of weights, data order and search."] = 0
    out: Path = Path("out/demo")


def run(config: DemoConfig, session: Session) -> dict[str, Any]:
    """Run the stages that are not done, then print the report's place and the main results."""
    from chop.cli.stages import run_stages
    from chop.cli.tour import Tour, headline, shown
    from chop.cli.units import with_units

    session.start_work()
    stages = Tour(config, session.out).stages()
    results = run_stages(stages, session.out, session.console, fresh=config.fresh)
    numbers = headline(results)
    page = config.out / "report" / "report.html"
    session.console.say(f"\nreport: {page}\n")
    rows = [{"": name, "value": shown(value)} for name, value in numbers.items()]
    session.console.table(with_units(rows))
    return {"report": str(page), **numbers, "stages": results}
