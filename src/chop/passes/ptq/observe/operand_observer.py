"""Settings of one operand's format, from the range that an observer chose."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from chop.nn.quantizers import Quantizer
from chop.passes.ptq.observe.format_ranges import RangedFormat, ranged, rules_of, slot_rows
from chop.passes.ptq.observe.histogram import LEAST_BINS, MOST_COUNTS
from chop.passes.ptq.observe.observers import Observer, RuleObserver, make_observer

ObserverChoice = str | Mapping[str, Any]


def chosen_settings(form: Quantizer) -> tuple[str, ...]:
    """The settings of a format that an observer chooses."""
    if form.scaled is not None:
        return ("scale",)
    found = ranged(form)
    if found is not None:
        return (found.setting,)  # type: ignore[attr-defined]
    return ("scale_rule",) if any(True for _ in rules_of(form)) else ()


class OperandObserver:
    """Sees one operand batch by batch, and knows the settings of its format in the end."""

    def __init__(self, form: Quantizer, observer: ObserverChoice, where: str) -> None:
        self.form, self.ranged = form, ranged(form)
        self._observer: Observer | RuleObserver = (
            RuleObserver(form) if self.ranged is None else make_observer(observer, where)
        )
        self.has_seen = False

    def observe(self, x: Tensor) -> None:
        """See one batch."""
        self.has_seen = True
        is_ranged = self.ranged is not None
        self._observer.observe(slot_rows(self.form, x, by_row=False) if is_ranged else x)

    def result(self) -> dict[str, Any]:
        """The settings; for formats with a range also `low` and `high`, as numbers."""
        if isinstance(self._observer, RuleObserver):
            return self._observer.settings()
        assert self.ranged is not None, "it has an observer of ranges"
        return _result(self.form, self.ranged, *self._observer.range_for(self.ranged))


def parameter_settings(
    form: Quantizer, observer: ObserverChoice, value: Tensor, where: str
) -> dict[str, Any]:
    """The same for a parameter, which is there at once; its groups begin anew in every row."""
    found = ranged(form)
    if found is None:
        rules = RuleObserver(form)
        rules.observe(value)
        return rules.settings()
    ranges = []
    every = slot_rows(form, value.detach(), by_row=True)
    # so many at once that each slot's values are kept as they are
    at_once = max(1, MOST_COUNTS // max(every.shape[1], LEAST_BINS))
    for rows in torch.split(every, at_once):
        watcher = make_observer(observer, where)
        watcher.observe(rows)
        ranges.append(watcher.range_for(found))
    low, high = (torch.cat(bounds) for bounds in zip(*ranges, strict=True))
    result = _result(form, found, low, high)
    if form.scaled is not None and form.scaled.granularity == "group":
        result["scale"] = result["scale"].reshape(*value.shape[:-1], -1)
    return result


def _result(form: Quantizer, found: RangedFormat, low: Tensor, high: Tensor) -> dict[str, Any]:
    settings = found.settings(low, high)
    if form.scaled is not None and form.scaled.granularity == "tensor":
        settings["scale"] = float(settings["scale"])
    return {**settings, "low": float(low.min()), "high": float(high.max())}


def explicit_settings(form: Quantizer, role: str) -> dict[str, Any]:
    """Config keys that give `role` just this format, so that it takes no other operand's."""
    fields = dataclasses.fields(form)
    if form.is_bypass:
        return {f"{role}_name": "NA"}
    told = {f.name: getattr(form, f.name) for f in fields if getattr(form, f.name) != f.default}
    return {f"{role}_{name}": value for name, value in (told or _first(form)).items()}


def _first(form: Quantizer) -> dict[str, Any]:
    name = dataclasses.fields(form)[-1].name
    return {name: getattr(form, name)}
