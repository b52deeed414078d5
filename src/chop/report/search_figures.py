"""Figures of searches, saved together with their numbers.

A study is the plain data that `chop.actions.trials` describes: `SearchResult.record` returns it
and `study.json` contains it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chop.actions.trials import (
    COPIED_FROM,
    TrialRecord,
    best_so_far,
    best_trial,
    candidates,
    is_feasible,
    pareto_front,
)
from chop.errors import ConfigError, DataError, MissingDependencyError
from chop.nn.quantizers.formats import FORMATS
from chop.nn.quantizers.spelling import resolve
from chop.registry import suggest
from chop.report.curves import (
    COLOURS,
    Axes,
    Curve,
    draw_curves,
    end_at_one,
    legend_below,
    make_curve,
    pyplot,
    save_figure,
)

Study = Mapping[str, Any]
FLOAT = "float"
"""Label of a layer that is not quantised."""
DEFAULT_WIDTHS = {FLOAT: 32.0}
"""Bits that a layer without a width is drawn with; 8 in other formats, their default width."""
STAGES = ("before compression", "compressed", "compressed, then trained")
"""Labels of the three curves of a compression-aware search."""
MOST_LAYERS = 60
"""Largest number of layers that are drawn with their names."""


def best_curves(studies: Mapping[str, Study | Sequence[Study]], objective: str) -> list[Curve]:
    """Return, for each label, the best value after each evaluation.

    Several studies under one label, of different seeds, are one curve with its spread.
    """
    curves = []
    for label, group in studies.items():
        points: list[dict[str, Any]] = []
        for study in _as_list(group):
            values = best_so_far(study["trials"], objective, _direction(study, objective))
            points += [{"trial": i, "best": value} for i, value in enumerate(values, start=1)]
        curves.append(make_curve(label, points, "trial", "best"))
    return curves


def _as_list(studies: Study | Sequence[Study]) -> Sequence[Study]:
    return [studies] if isinstance(studies, Mapping) else studies


def _direction(study: Study, objective: str) -> str:
    if objective not in study["objectives"]:
        nearest = suggest(objective, study["objectives"])
        raise DataError(f"study '{study['name']}': it has no objective '{objective}'. {nearest}")
    direction: str = study["objectives"][objective]
    return direction


def draw_best_so_far(
    path: str | Path,
    studies: Mapping[str, Study | Sequence[Study]],
    objective: str | None = None,
    *,
    title: str | None = None,
    levels: Mapping[str, float] | None = None,
) -> list[Path]:
    """Draw a curve for each label (a sampler, a precision): the best so far over the trials.

    Default objective: the first of the first study.
    """
    first = next((_as_list(group)[0] for group in studies.values()), None)
    if first is None:
        raise DataError(f"draw_best_so_far: there is no study to draw in '{path}'.")
    chosen = objective or next(iter(first["objectives"]))
    curves = [curve for curve in best_curves(studies, chosen) if curve.x]
    way = "higher" if _direction(first, chosen) == "maximize" else "lower"
    shown = title or f"Best {chosen} so far ({way} is better)"
    axes = Axes(shown, "trials", f"best {chosen} so far", levels, is_stepped=True)
    return draw_curves(path, curves, axes)


def draw_compression(
    path: str | Path,
    before: Study | Sequence[Study],
    compressed: Study | Sequence[Study],
    trained: Study | Sequence[Study],
    objective: str | None = None,
    *,
    title: str | None = None,
) -> list[Path]:
    """Draw three searches: without compression, compressed, and compressed with training after."""
    together = dict(zip(STAGES, (before, compressed, trained), strict=True))
    return draw_best_so_far(path, together, objective, title=title)


def front_rows(study: Study, x: str, y: str) -> list[dict[str, Any]]:
    """Return every complete trial with its place: `front`, `beaten` or `infeasible`."""
    ways = {name: _direction(study, name) for name in (x, y)}
    front = {trial["number"] for trial in pareto_front(study["trials"], ways)}
    rows = []
    for trial in study["trials"]:
        if trial["state"] != "complete" or COPIED_FROM in trial["attributes"]:
            continue
        place = "front" if trial["number"] in front else "beaten"
        place = place if is_feasible(trial) else "infeasible"
        values = {x: trial["values"][x], y: trial["values"][y]}
        rows.append({"trial": trial["number"], **values, "place": place})
    return rows


_PLACES: dict[str, dict[str, Any]] = {
    "infeasible": {"marker": "x", "color": COLOURS[4], "alpha": 0.6},
    "beaten": {"marker": "o", "color": COLOURS[7], "alpha": 0.5},
    "front": {"marker": "o", "color": COLOURS[0]},
}


def draw_pareto(
    path: str | Path,
    study: Study,
    x: str | None = None,
    y: str | None = None,
    *,
    title: str | None = None,
    points: Mapping[str, tuple[float, float]] | None = None,
) -> list[Path]:
    """Draw two objectives against each other: the front, beaten trials and infeasible trials.

    `points` are named points to compare with, such as the model before compression.
    """
    names = list(study["objectives"])
    if len(names) < 2 and not (x and y):
        raise DataError(f"study '{study['name']}': a front needs two objectives, it has {names}.")
    y, x = y or names[0], x or names[1]
    rows = front_rows(study, x, y)
    if not rows:
        raise DataError(f"study '{study['name']}': no trial is complete, there is no front.")
    figure, plane = pyplot().subplots(figsize=(7.0, 4.4), layout="constrained")
    for place, style in _PLACES.items():
        own = sorted((r[x], r[y]) for r in rows if r["place"] == place)
        corners = "steps-post" if study["objectives"].get(x) == "minimize" else "steps-pre"
        line = {"linestyle": "-", "drawstyle": corners} if place == "front" else {"linestyle": ""}
        if own:
            plane.plot(*zip(*own, strict=True), label=place, **line, **style)
    for name, where in (points or {}).items():
        plane.plot(*where, marker="*", markersize=12, linestyle="", label=name)
    count = sum(r["place"] == "front" for r in rows)
    shown = title or f"Pareto front of {y} and {x}: {count} of {len(rows)} trials"
    plane.set(title=shown, xlabel=x, ylabel=y)
    end_at_one(plane, y)
    plane.grid(alpha=0.3)
    legend_below(figure, plane)
    return save_figure(path, figure, rows)


def importance(study: Study, objective: str | None = None) -> list[dict[str, Any]]:
    """Return the share of the objective's spread that each parameter explains, largest first.

    Parameters that only some trials have are skipped.
    """
    try:
        import optuna
    except ImportError as error:
        raise MissingDependencyError(
            "importance: optuna is not installed. Install it: pip install 'masegraph[search]'."
        ) from error
    chosen = objective or next(iter(study["objectives"]))
    direction = _direction(study, chosen)
    trials = candidates(study["trials"])
    spaces = _distributions(trials, optuna.distributions)
    if len(trials) < 4 or not spaces:
        raise DataError(
            f"study '{study['name']}': {len(trials)} results and {len(spaces)} parameters that "
            "vary are too few to tell which matters. Needed: 4 and 1."
        )
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # do not log that a study was created
    try:
        rebuilt: Any = optuna.create_study(direction=direction)  # type: ignore[arg-type]
    finally:
        optuna.logging.set_verbosity(level)
    for trial in trials:
        params = {name: trial["params"][name] for name in spaces}
        value = trial["values"][chosen]
        rebuilt.add_trial(optuna.create_trial(params=params, distributions=spaces, value=value))
    shares = optuna.importance.get_param_importances(rebuilt)
    return [{"parameter": name, "importance": share} for name, share in shares.items()]


def _distributions(trials: Sequence[TrialRecord], kinds: Any) -> dict[str, Any]:
    """Return the range of values of each parameter that all trials have and that varies."""
    names = set.intersection(*(set(t["params"]) for t in trials)) if trials else set()
    ranges = {}
    for name in sorted(names):
        values = [trial["params"][name] for trial in trials]
        distinct = list(dict.fromkeys(values))
        if len(distinct) < 2:
            continue
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        if numbers and any(isinstance(v, float) for v in values):
            ranges[name] = kinds.FloatDistribution(min(values), max(values))
        elif numbers:
            ranges[name] = kinds.IntDistribution(min(values), max(values))
        else:
            ranges[name] = kinds.CategoricalDistribution(distinct)
    return ranges


def draw_importance(
    path: str | Path, study: Study, objective: str | None = None, *, most: int = 20
) -> list[Path]:
    """Draw the `most` important parameters as bars."""
    chosen = objective or next(iter(study["objectives"]))
    rows = importance(study, chosen)
    shown = rows[:most][::-1]
    figure, plane = _bars(len(shown))
    shares = [r["importance"] for r in shown]
    plane.barh([r["parameter"] for r in shown], shares, color=COLOURS[0])
    figure.suptitle(f"How much of the spread of {chosen} each parameter explains")
    plane.set(xlabel="share of the spread")
    return save_figure(path, figure, rows)


def layer_formats(trial: TrialRecord) -> list[dict[str, Any]]:
    """Return the number format of each layer in a trial: `{"layer", "format", "width"}`.

    They come from the attribute `formats` (layer -> name, or -> config), or else from the
    parameters whose value is the name of a format. The width is the weight's, or None.
    """
    formats = trial["attributes"].get("formats") or {
        name: value for name, value in trial["params"].items() if _named(value)[0]
    }
    return [_layer_row(layer, chosen, trial["params"]) for layer, chosen in formats.items()]


def _named(value: Any) -> tuple[str | None, dict[str, Any]]:
    """Return the name of a format and the settings of its spelling; (None, {}) if it is none.

    'integer', 'integer#1', 'integer(width=8)' and 'fixed8.4' have the same name.
    """
    match = re.match(r"[a-z][^#( ]*", value) if isinstance(value, str) else None
    text = match.group() if match else ""
    if text in FORMATS or text == FLOAT:
        return text, {}
    try:
        spelled = resolve(FORMATS, text)
    except ConfigError:  # another parameter's value
        spelled = None
    return (None, {}) if spelled is None else (spelled[0].name, spelled[1])


def _layer_row(layer: str, chosen: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(chosen, Mapping):
        name, settings = chosen.get("name"), dict(chosen)
    else:
        name, settings = chosen, _settings(layer, params)
    format_name, spelled = _named(name)
    settings = {**spelled, **settings}
    keys = ("weight_width", "width", "weight_element", "element")
    widths = [_bits(settings[key]) for key in keys if settings.get(key) is not None]
    label = format_name or (FLOAT if name is None else str(name))
    return {"layer": layer, "format": label, "width": widths[0] if widths else None}


def _bits(value: Any) -> int:
    """Return a width in bits; an element such as "e4m3" has sign, exponent and mantissa."""
    element = re.fullmatch(r"e(\d+)m(\d+)", str(value))
    return 1 + int(element[1]) + int(element[2]) if element else int(value)


def _settings(layer: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a layer's settings in the parameters: `layer.format.width`, or `option(width=8)`."""
    inner = {k.rpartition(".")[2]: v for k, v in params.items() if k.startswith(f"{layer}.")}
    option = params.get(layer)
    pairs = re.findall(r"(\w+)\s*=\s*(\w+)", option) if isinstance(option, str) else []
    return {**dict(pairs), **inner}


def draw_precision_map(
    path: str | Path, trial: TrialRecord, *, title: str | None = None
) -> list[Path]:
    """Draw the layers of a trial as bars: the format is the colour, the width the length."""
    rows = layer_formats(trial)
    if not rows:
        raise DataError(
            f"trial {trial['number']}: neither its attributes nor its parameters name "
            "the format of a layer."
        )
    figure, plane = _bars(len(rows))
    places = range(len(rows))
    for number, name in enumerate(sorted({row["format"] for row in rows})):
        own = [i for i in places if rows[i]["format"] == name]
        default = DEFAULT_WIDTHS.get(name, 8.0)
        bits = [default if rows[i]["width"] is None else float(rows[i]["width"]) for i in own]
        plane.barh(own, bits, color=COLOURS[number % len(COLOURS)], label=name)
    if len(rows) <= MOST_LAYERS:
        plane.set_yticks(list(places), [row["layer"] for row in rows])
    plane.invert_yaxis()
    most, count = Counter(row["format"] for row in rows).most_common(1)[0]
    finding = f"Formats of trial {trial['number']}: {most} in {count} of {len(rows)} layers"
    plane.set(xlabel="width of the weight, bits")
    figure.suptitle(title or finding)  # centred over the layers' names too, which can be long
    figure.legend(loc="outside lower center", ncols=4)
    return save_figure(path, figure, rows)


def format_counts(study: Study, best: int = 10) -> list[dict[str, Any]]:
    """Return the share of layers in each format, over all complete trials and the `best`."""
    trials = candidates(study["trials"])
    way = dict([next(iter(study["objectives"].items()))])
    ranked: list[TrialRecord] = []
    while trials and len(ranked) < best:
        top = best_trial(trials, way)
        assert top is not None, "every candidate has a value"
        ranked.append(top)
        trials = [t for t in trials if t["number"] != top["number"]]
    everywhere, among_best = (
        Counter(row["format"] for trial in group for row in layer_formats(trial))
        for group in ([*ranked, *trials], ranked)
    )
    names = [name for name, _ in everywhere.most_common()]
    total, best_total = sum(everywhere.values()) or 1, sum(among_best.values()) or 1
    return [
        {"format": n, "all": everywhere[n] / total, "best": among_best[n] / best_total}
        for n in names
    ]


def draw_format_counts(path: str | Path, study: Study, *, best: int = 10) -> list[Path]:
    """Draw the share of each format over all trials and over the `best`."""
    rows = format_counts(study, best)
    if not rows:
        raise DataError(f"study '{study['name']}': no trial names the format of a layer.")
    figure, plane = _bars(len(rows))
    places = range(len(rows))
    for shift, key, label, colour in (
        (-0.2, "all", "all trials", COLOURS[7]),
        (0.2, "best", f"best {best}", COLOURS[0]),
    ):
        plane.barh(
            [i + shift for i in places], [r[key] for r in rows], 0.4, label=label, color=colour
        )
    plane.set_yticks(list(places), [row["format"] for row in rows])
    plane.invert_yaxis()
    plane.set(title="Formats that layers were given", xlabel="share of layers")
    legend_below(figure, plane)
    return save_figure(path, figure, rows)


def _bars(count: int) -> tuple[Any, Any]:
    height = min(max(2.4, 0.3 * count + 1.2), 24.0)
    figure, plane = pyplot().subplots(figsize=(7.0, height), layout="constrained")
    plane.grid(alpha=0.3, axis="x")
    return figure, plane
