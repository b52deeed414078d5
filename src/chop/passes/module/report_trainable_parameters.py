"""Report the trainable parameters of a model as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from chop.config import parse
from chop.errors import PassError
from chop.passes.base import NoArgs
from chop.passes.report_table import draw_table, show

HEADERS = ("Submodule", "Trainable Parameters", "Total Parameters")


def report_trainable_parameters_analysis_pass(
    module: nn.Module, pass_args: Mapping[str, Any] | None = None
) -> tuple[nn.Module, dict[str, Any]]:
    """Show trainable and total parameters of each module that owns some.

    `info["table"]` has the records, `info["total"]` and `info["trainable"]` the sums over distinct
    parameters; a shared one counts once, for its first owner.
    """
    parse(NoArgs, pass_args, "report_trainable_parameters")
    if not isinstance(module, nn.Module):
        kind = type(module).__name__
        raise PassError(
            f"report_trainable_parameters: expected a module, got {kind}. Give mg.model."
        )
    owners: dict[str, list[nn.Parameter]] = {}
    for path, parameter in module.named_parameters():
        owners.setdefault(path.rpartition(".")[0], []).append(parameter)
    rows: list[dict[str, Any]] = [
        {
            "Submodule": owner or "(itself)",
            "Trainable Parameters": sum(p.numel() for p in owned if p.requires_grad),
            "Total Parameters": sum(p.numel() for p in owned),
        }
        for owner, owned in owners.items()
    ]
    sums = {header: sum(row[header] for row in rows) for header in HEADERS[1:]}
    show("\n" + draw_table([*rows, {"Submodule": "total"} | sums], HEADERS))
    trainable, total = sums.values()
    return module, {"table": rows, "trainable": trainable, "total": total}
