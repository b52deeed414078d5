"""Every component against its Python class: sizes × widths × parallelism × stalls.

A group of components is one build. Faults are built into its RTL as well, all turned off while the
components are tested: then each of them is turned on, and the same test must fail. A group of which
nothing changed since it was simulated is in the ledger, and only `make slow` simulates it again.
"""

import warnings
from dataclasses import replace

import pytest
from component_ledger import (
    ALWAYS,
    COMMAND,
    fingerprint,
    line,
    lint_group,
    make_bench,
    read_ledger,
    simulate_group,
)
from mutants import EQUIVALENT
from mutation_engine import faults
from mutation_run import CAMPAIGN, ELSEWHERE, GROUPS, campaign, group_faults

from chop.hw.design.component import COMPONENTS, rtl_sources
from chop.hw.timing.cycles import simulate_control

NAMES = sorted(name for name, cls in COMPONENTS.items() if cls.__module__.startswith("chop."))
LEDGER = read_ledger()


@pytest.mark.parametrize("name", NAMES)
def test_every_component_has_cases_of_its_own_kind(name):
    cases = COMPONENTS[name].cases()
    assert cases and {type(case) for case in cases} == {COMPONENTS[name]}


def test_every_component_and_every_module_is_in_a_group():
    assert sorted(name for group in GROUPS.values() for name in group.components) == NAMES
    modules = set(rtl_sources())
    with_faults = {module for module in modules - ELSEWHERE if faults(module)}
    assert {module for group in GROUPS.values() for module in group.modules} == with_faults


def test_faults_are_many_and_those_without_effect_are_among_them():
    chosen = {fault.name for group in GROUPS.values() for fault in group_faults(group, CAMPAIGN)}
    every = {fault.name for group in GROUPS.values() for m in group.modules for fault in faults(m)}
    assert len(chosen) >= 450
    assert len(every) >= 1900
    assert set(EQUIVALENT) <= every, "reasons that no fault needs any more"


@pytest.mark.sim
@pytest.mark.parametrize("name", GROUPS)
def test_a_group_is_in_the_ledger_or_exact_and_its_faults_are_noticed(name, tmp_path):
    bench = make_bench(name, tmp_path / "bench")
    if line(name, bench) in LEDGER and name != ALWAYS:
        return
    if name != ALWAYS:
        warnings.warn(f"{name} is not in the ledger: run `{COMMAND}`", stacklevel=1)
    assert simulate_group(bench) == []
    assert lint_group(name, tmp_path / "lint") == ""


def test_the_ledger_has_every_group_once():
    assert sorted(each.split()[0] for each in LEDGER) == sorted(GROUPS)


def test_a_change_of_rtl_values_cycles_or_faults_changes_the_fingerprint(tmp_path, monkeypatch):
    def changed(edit):
        bench = make_bench("movers", tmp_path)
        edit(bench)
        return fingerprint(bench)

    def change_rtl(bench):
        path = tmp_path / "rtl" / "fifo.sv"
        path.write_text(path.read_text().replace("count_q", "number_q"))

    def change_value(bench):
        next(iter(bench.check.expected.values()))[0] += 1

    found = {changed(edit) for edit in (lambda bench: None, change_rtl, change_value)}
    found.add(changed(lambda bench: bench.sound.reverse()))
    monkeypatch.setattr("component_ledger.simulate_control", later)
    found.add(changed(lambda bench: None))
    assert len(found) == 5


def later(design, tensors, stalls):
    """Return a model of cycles in which every beat comes a cycle later."""
    timing = simulate_control(design, tensors, stalls)
    outputs = {name: [time + 1 for time in times] for name, times in timing.outputs.items()}
    return replace(timing, outputs=outputs)


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.parametrize("name", GROUPS)
def test_components_are_exact_and_silent_under_lint(name, tmp_path):
    assert simulate_group(make_bench(name, tmp_path / "bench")) == []
    assert lint_group(name, tmp_path / "lint") == ""


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.parametrize("name", GROUPS)
def test_every_fault_is_noticed_or_has_no_effect(name, tmp_path):
    result = campaign(GROUPS[name], tmp_path)
    assert result.unnoticed == []
    assert result.needless == [], "noticed, and yet in the table of faults without effect"
