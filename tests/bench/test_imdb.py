"""The IMDb bench runs from start to report: on made-up reviews always, on real ones where kept."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from chop.actions.records import read_records
from chop.dataset import TokenArrays, get_dataset
from chop.models import tiny_bert

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench" / "imdb"


@pytest.fixture(autouse=True)
def bench_modules(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))


def reviews(size=40, longest=100):
    draw = np.random.default_rng(0)
    lengths = draw.integers(2, longest, size)
    offsets = np.concatenate([[0], lengths.cumsum()])
    ids = draw.integers(1, 64, offsets[-1]).astype(np.uint16)
    return TokenArrays(ids, offsets, draw.integers(0, 2, size).astype(np.uint8), 80)


def test_an_epoch_has_every_review_once_but_for_the_remainder():
    from batches import Reviews

    data = Reviews.on(reviews(43), torch.device("cpu"))
    batches = data.shuffled(8, torch.Generator().manual_seed(0))
    rows = torch.cat(batches)
    assert (len(batches), len(rows), len(rows.unique())) == (5, 40, 40)
    again = data.shuffled(8, torch.Generator().manual_seed(1))
    assert not torch.equal(rows, torch.cat(again))


def test_a_batch_holds_the_tokens_of_its_reviews_and_no_others():
    from batches import Reviews

    given = reviews()
    batch = Reviews.on(given, torch.device("cpu")).batch(torch.tensor([3, 7]))
    for row, index in enumerate((3, 7)):
        kept = batch["attention_mask"][row].bool()
        assert batch["input_ids"][row][kept].tolist() == given.tokens(index).tolist()
        assert batch["input_ids"][row][~kept].sum() == 0
    assert batch["labels"].tolist() == given.labels[[3, 7]].tolist()


def test_the_learning_rate_rises_then_falls_to_nearly_nothing():
    from loop import Recipe, learning_rate

    rates = [learning_rate(Recipe(1.0, warm_up=0.1), step, 100) for step in range(100)]
    assert rates[9] == max(rates) == 1.0
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0 < rates[-1] < 0.02


def test_every_kind_of_point_has_a_change_and_a_recipe():
    from plan import CHANGES, RECIPES, points

    kinds = {point["sweep"] for point in points(0)}
    assert kinds == set(CHANGES) == set(RECIPES)
    assert len({str(sorted(p.items(), key=str)) for p in points(0)}) == len(points(0))


def run_bench(script, *arguments):
    path = f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(BENCH / script), *map(str, arguments)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return done.stdout.decode()


def check_smoke(data, model, out):
    from plan import CHANGES

    options = ["--data", data, "--model", model, "--out", out, "--smoke"]
    assert "budget of 0 s reached" in run_bench("run.py", *options, "--budget-seconds", 0)
    run_bench("run.py", *options)
    records = read_records(out / "seed-0.jsonl")
    assert {record["sweep"] for record in records} == set(CHANGES)
    assert "of" not in run_bench("run.py", *options), "a finished run measured something again"
    assert read_records(out / "seed-0.jsonl") == records
    run_bench("report.py", out, "--to", out / "report")
    text = (out / "report" / "results.md").read_text()
    assert "LoRA of rank 8 less training the same layers whole" in text
    figures = {file.name for file in (out / "report" / "figures").iterdir()}
    assert {"sparsity.png", "sparsity.svg", "sparsity.csv", "lora_rank.png"} <= figures


@pytest.mark.slow
def test_the_bench_runs_on_made_up_reviews(tmp_path):
    tiny_bert(num_hidden_layers=1).save_pretrained(tmp_path / "model")
    (tmp_path / "data" / "tokens").mkdir(parents=True)
    for split, rows in get_dataset("sequences", length=12).items():
        ids, mask, labels = (rows.columns[name].numpy() for name in rows.column_names)
        offsets = np.concatenate([[0], mask.sum(1).cumsum()])
        file = tmp_path / "data" / "tokens" / f"{split}.npz"
        np.savez(file, ids=ids[mask == 1], offsets=offsets, labels=labels)
    check_smoke(tmp_path / "data", tmp_path / "model", tmp_path / "out")


def kept(variable, folder, name):
    shelf = os.environ.get(variable)
    places = [Path(shelf)] if shelf else [ROOT.parent / "shared" / folder]
    return next((place / name for place in places if (place / name).is_dir()), None)


@pytest.mark.slow
def test_the_bench_runs_on_the_real_reviews(tmp_path):
    data, model = kept("MASE_DATA", "data", "imdb"), kept("MASE_MODELS", "models", "bert-tiny")
    if data is None or model is None:
        pytest.skip("set MASE_DATA and MASE_MODELS to folders that hold 'imdb' and 'bert-tiny'")
    check_smoke(data, model, tmp_path / "out")
