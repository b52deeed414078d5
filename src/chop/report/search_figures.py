"""Figures of searches, drawn from their plain records and saved with the numbers they show.

A study is the plain data that `chop.actions.trials` describes: what `SearchResult.record` gives
and `study.json` holds.
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
"""How a layer that was left as it is is shown."""
STAGES = ("before compression", "compressed", "compressed, then trained")
"""The three curves of a compression-aware search."""
MOST_LAYERS = 60
"""More layers than this are drawn without their names."""


def best_curves(studies: Mapping[str, Study | Sequence[Study]], objective: str) -> list[Curve]:
    """For each label the best value after each evaluation.

    Several studies under one label, of different seeds, are one curve with its spread.
    """
    return [_best_curve(label, _several(given), objective) for label, given in studies.items()]


def _several(given: Study | Sequence[Study]) -> Sequence[Study]:
    return [given] if isinstance(given, Mapping) else given


def _best_curve(label: str, studies: Sequence[Study], objective: str) -> Curve:
    points: list[dict[str, Any]] = []
    for study in studies:
        direction = _direction(study, objective)
        values = best_so_far(study["trials"], objective, direction)
        points += [{"trial": i, "best": value} for i, value in enumerate(values, start=1)]
    return make_curve(label, points, "trial", "best")


def _direction(study: Study, objective: str) -> str:
    if objective not in study["objectives"]:
        known = suggest(objective, study["objectives"])
        raise DataError(f"study '{study['name']}': it has no objective '{objective}'. {known}")
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

    Without an objective it is the first of the first study.
    """
    first = next((_several(given)[0] for given in studies.values()), None)
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
    """Every complete trial with its place: on the `front`, `beaten` or `infeasible`."""
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
    """Draw two objectives against each other: the front, the trials it beats, the infeasible.

    `points` are named places to compare with, such as the model before compression.
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
    found = sum(r["place"] == "front" for r in rows)
    shown = title or f"Pareto front of {y} and {x}: {found} of {len(rows)} trials"
    plane.set(title=shown, xlabel=x, ylabel=y)
    end_at_one(plane, y)
    plane.grid(alpha=0.3)
    legend_below(figure, plane)
    return save_figure(path, figure, rows)


def importance(study: Study, objective: str | None = None) -> list[dict[str, Any]]:
    """How much of the objective's spread each parameter explains, most first; shares of 1.

    Parameters that only some trials have are left out: there is nothing to compare them with.
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
    rebuilt = _empty_study(optuna, direction)
    for trial in trials:
        params = {name: trial["params"][name] for name in spaces}
        value = trial["values"][chosen]
        rebuilt.add_trial(optuna.create_trial(params=params, distributions=spaces, value=value))
    shares = optuna.importance.get_param_importances(rebuilt)
    return [{"parameter": name, "importance": share} for name, share in shares.items()]


def _empty_study(optuna: Any, direction: str) -> Any:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would say that it made a study
    try:
        return optuna.create_study(direction=direction)
    finally:
        optuna.logging.set_verbosity(before)


def _distributions(trials: Sequence[TrialRecord], kinds: Any) -> dict[str, Any]:
    """For each parameter that all trials have and that varies, the range of its values."""
    names = set.intersection(*(set(t["params"]) for t in trials)) if trials else set()
    found = {}
    for name in sorted(names):
        values = [trial["params"][name] for trial in trials]
        distinct = list(dict.fromkeys(values))
        if len(distinct) < 2:
            continue
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        if numbers and any(isinstance(v, float) for v in values):
            found[name] = kinds.FloatDistribution(min(values), max(values))
        elif numbers:
            found[name] = kinds.IntDistribution(min(values), max(values))
        else:
            found[name] = kinds.CategoricalDistribution(distinct)
    return found


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
    """The number format of each layer in a trial: `{"layer", "format", "width"}`.

    From the attribute `formats` (layer -> name, or -> config), or else from the parameters whose
    value is the name of a format. The width is the weight's, None where none is given.
    """
    given = trial["attributes"].get("formats") or {
        name: value for name, value in trial["params"].items() if _format_name(value)
    }
    return [_layer_row(layer, chosen, trial["params"]) for layer, chosen in given.items()]


def _format_name(value: Any) -> str | None:
    """Return the format that an option names, None if it names none.

    'integer', 'integer#1', 'integer(width=8)' and 'fixed8.4' name the same.
    """
    return _named(value)[0]


def _named(value: Any) -> tuple[str | None, dict[str, Any]]:
    """Return the name of a format and the settings of its spelling."""
    found = re.match(r"[a-z][^#( ]*", value) if isinstance(value, str) else None
    text = found.group() if found else ""
    if text in FORMATS or text == FLOAT:
        return text, {}
    try:
        known = resolve(FORMATS, text)
    except ConfigError:  # another parameter's value
        known = None
    return (None, {}) if known is None else (known[0].name, known[1])


def _layer_row(layer: str, chosen: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(chosen, Mapping):
        name, settings = chosen.get("name"), dict(chosen)
    else:
        name, settings = chosen, _settings(layer, params)
    named, spelled = _named(name)
    known = named or (FLOAT if name is None else str(name))
    settings = {**spelled, **settings}
    keys = ("weight_width", "width", "weight_element", "element")
    widths = [_bits(settings[key]) for key in keys if settings.get(key) is not None]
    return {"layer": layer, "format": known, "width": widths[0] if widths else None}


def _bits(value: Any) -> int:
    """A width as it is; of an element such as "e4m3" its sign, exponent and mantissa."""
    element = re.fullmatch(r"e(\d+)m(\d+)", str(value))
    return 1 + int(element[1]) + int(element[2]) if element else int(value)


def _settings(layer: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """What the parameters say of a layer: `layer.format.width`, or `option(width=8)`."""
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
    colours = _colours([row["format"] for row in rows])
    places = range(len(rows))
    for name, colour in colours.items():
        own = [i for i in places if rows[i]["format"] == name]
        plane.barh(own, [_length(rows[i]) for i in own], color=colour, label=name)
    if len(rows) <= MOST_LAYERS:
        plane.set_yticks(list(places), [row["layer"] for row in rows])
    plane.invert_yaxis()
    most, count = Counter(row["format"] for row in rows).most_common(1)[0]
    finding = f"Formats of trial {trial['number']}: {most} in {count} of {len(rows)} layers"
    plane.set(xlabel="width of the weight, bits")
    figure.suptitle(title or finding)  # over the names of the layers too, which can be long
    figure.legend(loc="outside lower center", ncols=4)
    return save_figure(path, figure, rows)


def _length(row: Mapping[str, Any]) -> float:
    """Bits; a format that says no width is drawn with that of its default, float with 32."""
    if row["width"] is not None:
        return float(row["width"])
    return 32.0 if row["format"] == FLOAT else 8.0


def format_counts(study: Study, best: int = 10) -> list[dict[str, Any]]:
    """How often layers have each format: over all complete trials, and in the `best` of them."""
    trials = candidates(study["trials"])
    way = dict([next(iter(study["objectives"].items()))])
    ranked: list[TrialRecord] = []
    while trials and len(ranked) < best:
        found = best_trial(trials, way)
        assert found is not None, "every candidate has a value"
        ranked.append(found)
        trials = [t for t in trials if t["number"] != found["number"]]
    everywhere, among_best = (
        Counter(row["format"] for trial in group for row in layer_formats(trial))
        for group in ([*ranked, *trials], ranked)
    )
    names = [name for name, _ in everywhere.most_common()]
    whole, top = sum(everywhere.values()) or 1, sum(among_best.values()) or 1
    return [{"format": n, "all": everywhere[n] / whole, "best": among_best[n] / top} for n in names]


def draw_format_counts(path: str | Path, study: Study, *, best: int = 10) -> list[Path]:
    """Draw which formats were chosen: of all trials, and of the `best`."""
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


def _colours(names: Sequence[str]) -> dict[str, Any]:
    """A colour for each format, the same in every figure that has the same formats."""
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(sorted(set(names)))}
