"""The programs: the tour and the digits."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from graph.compiler import compile_graph
from graph.evaluator import evaluate
from graph.main import PHASES, main
from graph.passes import optimize

ROOT = Path(__file__).resolve().parents[2]


def test_the_tour_shows_five_phases_and_answers_five_questions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main()
    out = capsys.readouterr().out
    assert [f"Phase {n}: {title}" in out for n, title in enumerate(PHASES, start=1)] == [True] * 5
    assert out.count("?") == 5
    assert "the graph has a cycle: y -> loss -> y" in out
    assert "d loss / d x = 130" in out and "d loss / d w = 52" in out
    assert "same values: True" in out


def test_the_library_imports_numpy_but_neither_torch_nor_chop() -> None:
    code = (
        "import sys, graph.ir, graph.evaluator, graph.backward, graph.passes, graph.compiler, "
        "graph.main; print([m for m in ('torch', 'chop', 'numpy') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['numpy']"


@pytest.fixture(scope="module")
def digits() -> ModuleType:
    spec = importlib.util.spec_from_file_location("digits_graph", ROOT / "examples/digits_graph.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_digits_are_learnt_to_95_percent(digits: ModuleType) -> None:
    data = digits.load()
    assert digits.accuracy(data, digits.initial_weights()) < 0.3
    assert digits.accuracy(data, digits.train(data)) >= 0.95


def test_one_compiled_step_equals_one_plain_step(digits: ModuleType) -> None:
    step = digits.build_step(batch=16)
    inputs = {**digits.initial_weights(), **next(digits.batches(digits.load(), 16, seed=0))}
    expected = evaluate(step.graph, inputs, step.outputs)
    found = compile_graph(optimize(step.graph, step.outputs).graph, step.outputs)(inputs)
    for name in step.outputs:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12, atol=1e-14)


@pytest.fixture(scope="module")
def bench(digits: ModuleType) -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_graph", ROOT / "bench/graph.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_all_variants_of_the_benchmark_compute_the_same(bench: ModuleType) -> None:
    for work in (bench.digits_step(16), bench.gelu_gradient(2)):
        found = [run() for run in bench.variants(work).values()]
        for values in found[1:]:
            for name in work.outputs:
                np.testing.assert_allclose(values[name], found[0][name], rtol=1e-10, atol=1e-12)


def test_the_benchmark_measures_variants_in_turn(bench: ModuleType) -> None:
    work = bench.gelu_gradient(2)
    times = bench.measure(work, rounds=5)
    assert {name: len(each.seconds) for name, each in times.items()} == dict.fromkeys(
        bench.variants(work), 5
    )


def test_other_scripts_beside_the_benchmark_can_import_the_package() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'bench')!r}); import graph.draw; print('ok')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "ok"
