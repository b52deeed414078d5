"""The search bench: its studies are whole, its choices right, and it runs from start to report."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from chop.actions.records import read_records
from chop.dataset import get_dataset
from chop.models import tiny_bert
from chop.nn.quantizers import FORMATS

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench" / "search"
MODULES = ("experiments", "finals", "report", "run", "subjects")


@pytest.fixture(autouse=True)
def bench_modules(monkeypatch):
    """Other benches have modules of the same names."""
    monkeypatch.syspath_prepend(str(BENCH))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def test_every_study_has_a_name_of_its_own_and_every_format_a_study():
    from experiments import plans

    names = [plan.name for plan in plans()]
    assert len(set(names)) == len(names)
    assert {plan.experiment for plan in plans()} == {1, 2, 3, 4, 5, 6}
    assert {plan.label for plan in plans() if plan.experiment == 4} == set(FORMATS)


def trial(number, accuracy, bits=None):
    values = {"accuracy": accuracy} | ({} if bits is None else {"average_bits": bits})
    fields = {"number": number, "state": "complete", "values": values, "params": {"x": number}}
    return {**fields, "attributes": {}, "seconds": 1.0, "reason": None}


def study(name, *trials):
    directions = {"accuracy": "maximize", "average_bits": "minimize"}
    objectives = {objective: directions[objective] for objective in trials[0]["values"]}
    return {"name": name, "objectives": objectives, "sampler": "tpe", "trials": list(trials)}


def test_on_the_front_the_best_within_each_number_of_bits_is_chosen_once():
    from experiments import plans
    from finals import choose

    front = study("6-tpe", trial(0, 0.9, 4.9), trial(1, 0.8, 2.4), trial(2, 0.95, 7.0))
    jobs = choose(plans(), {"6-tpe": front}, seeds=[0])
    chosen = {job.choice: job.params["x"] for job in jobs if job.study == "6-tpe"}
    assert chosen == {"at most 2.5 bits": 1, "at most 5 bits": 0, "at most 8 bits": 2}


def test_samplers_are_compared_apart_and_formats_take_one_seed():
    from experiments import plans
    from finals import choose

    names = ("1-grid", "1-tpe", "4-mxint")
    studies = {name: study(name, trial(0, 0.5), trial(1, 0.7)) for name in names}
    jobs = choose(plans(), studies, seeds=[0, 1])
    counted = {name: sum(job.study == name for job in jobs) for name in names}
    assert counted == {"1-grid": 2, "1-tpe": 2, "4-mxint": 1}
    assert all(job.params == {"x": 1} for job in jobs if job.study != "float")


def run_bench(script, *arguments):
    path = f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(BENCH / script), *map(str, arguments)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return done.stdout.decode()


@pytest.mark.slow
def test_the_bench_runs_on_made_up_reviews(tmp_path):
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 2}
    tiny_bert(**sizes).save_pretrained(tmp_path / "model")
    (tmp_path / "data" / "tokens").mkdir(parents=True)
    for split, rows in get_dataset("sequences", length=12).items():
        ids, mask, labels = (rows.columns[name].numpy() for name in rows.column_names)
        offsets = np.concatenate([[0], mask.sum(1).cumsum()])
        file = tmp_path / "data" / "tokens" / f"{split}.npz"
        np.savez(file, ids=ids[mask == 1], offsets=offsets, labels=labels)
    out = tmp_path / "out"
    options = ["--data", tmp_path / "data", "--model", tmp_path / "model", "--out", out, "--smoke"]
    options += ["--experiment", 2, "--experiment", 6]
    run_bench("run.py", *options)
    finals = [r for file in out.glob("finals-*.jsonl") for r in read_records(file)]
    assert {r["study"].split("-")[0] for r in finals} == {"float", "2", "6"}
    assert "0 of" in run_bench("run.py", *options), "a finished run measured something again"
    run_bench("report.py", out, "--to", out / "report")
    assert "compression-aware: accuracy" in (out / "report" / "results.md").read_text()
    figures = {file.name for file in (out / "report" / "figures").iterdir()}
    assert {"2-best-so-far.png", "2-best-so-far.csv", "6-tpe-front.svg"} <= figures
