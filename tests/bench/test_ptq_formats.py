"""The table of formats: rows are measured once, and the verdicts are those of the rows."""

import importlib
import json
import multiprocessing
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

PTQ = Path(__file__).parents[2] / "bench" / "ptq"
NAMES = ("rows", "schemes", "subjects", "real_models", "methods", "formats", "formats_report")


@pytest.fixture
def bench(monkeypatch):
    """Import a module of bench/ptq by its name."""
    monkeypatch.syspath_prepend(str(PTQ.parent))
    monkeypatch.syspath_prepend(str(PTQ))
    yield importlib.import_module
    for name in [n for n in sys.modules if n in NAMES or n.split(".")[0] == "measuring"]:
        del sys.modules[name]


def measure_all(file, count):
    """Measure `count` rows beside other processes; each writes its own number."""
    sys.path.insert(0, str(PTQ))
    shared = importlib.import_module("rows").SharedRows(file)
    for number in range(count):
        shared.make({"scheme": number}, lambda: {"process": os.getpid()})


def test_processes_measure_each_row_once(tmp_path):
    file = tmp_path / "rows.jsonl"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=measure_all, args=(file, 40)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted(row["scheme"] for row in rows) == list(range(40))


def test_a_row_that_another_process_measures_is_left_to_it(bench, tmp_path):
    rows = bench("rows")
    file, row = tmp_path / "rows.jsonl", {"scheme": "a"}
    ready, done = multiprocessing.Event(), multiprocessing.Event()

    def hold():
        rows.SharedRows(file).make(row, lambda: {"ready": ready.set(), "done": done.wait(30)})

    worker = multiprocessing.get_context("fork").Process(target=hold)
    worker.start()
    assert ready.wait(30)
    shared, calls = rows.SharedRows(file), []
    shared.make(row, lambda: calls.append(1) or {})
    assert calls == [] and not file.exists()
    worker.kill()  # its row is free again
    worker.join()
    shared.make(row, lambda: calls.append(1) or {})
    shared.make(row, lambda: calls.append(1) or {})
    assert calls == [1] and [r["scheme"] for r in rows.read_rows(file)] == ["a"]


def test_rows_with_an_error_are_measured_again_if_asked_and_the_last_counts(bench, tmp_path):
    rows = bench("rows")
    file, row = tmp_path / "rows.jsonl", {"scheme": "a"}
    rows.SharedRows(file).make(row, lambda: {"error": "out of memory"})
    rows.SharedRows(file).make(row, lambda: {"perplexity": 1.0})
    assert "error" in rows.latest(rows.read_rows(file))[0]
    rows.SharedRows(file, again=True).make(row, lambda: {"perplexity": 2.0})
    (last,) = rows.latest(rows.read_rows(file))
    assert last["perplexity"] == 2.0 and "error" not in last


def test_no_row_is_begun_after_the_time(bench, tmp_path):
    rows = bench("rows")
    rows.SharedRows(tmp_path / "rows.jsonl", -1.0).make({"scheme": "a"}, dict)
    assert not (tmp_path / "rows.jsonl").exists()


def table(values):
    """Rows of smollm2 in MXFP4, given perplexities by tool."""
    return [
        {
            "subject": "smollm2",
            "scheme": "MXFP4",
            "tool": tool,
            "method": "gptq",
            "seed": seed,
            "perplexity": value,
        }
        for tool, each in values.items()
        for seed, value in enumerate(each)
    ]


@pytest.mark.parametrize(
    ("ours", "holds"), [((30.0, 30.2), True), ((30.6, 30.7), False), ((30.1, 30.4), True)]
)
def test_the_verdict_compares_with_the_best_tool_and_its_spread(bench, ours, holds):
    report = bench("formats_report")
    rows = table({"mase": ours, "llm-compressor 1": (31.0, 32.0), "auto-round 2": (30.0, 30.2)})
    rows.append({**rows[0], "method": "nearest", "perplexity": 20.0})  # no data, so it is no claim
    rows.append({**rows[2], "seed": 2, "error": "killed"})
    (verdict,) = report.verdicts("smollm2", rows)
    assert (verdict["tool"], verdict["holds"]) == ("auto-round", holds)
    assert verdict["best"] == pytest.approx(30.1)
    assert verdict["spread"] == pytest.approx(max(0.1, (ours[1] - ours[0]) / 2))


def test_rows_of_other_code_are_refused(bench):
    report = bench("formats_report")
    rows = [{**row, "code": "0123"} for row in table({"mase": (30.0,)})]
    with pytest.raises(SystemExit, match="measured on the code 0123, not on today's"):
        report.save(rows)


def test_tables_show_the_best_tool_the_seeds_and_where_the_claim_fails(
    bench, monkeypatch, tmp_path
):
    report, record = bench("formats_report"), bench("measuring.record")
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    assert report.tables() == []
    rows = table({"mase": (30.6, 30.7, 30.8), "llm-compressor 1": (31.0,), "auto-round 2": (30.0,)})
    rows.append({**rows[0], "tool": "", "scheme": "float", "method": "float", "perplexity": 25.0})
    rows.append({**rows[0], "method": "nearest", "seed": None, "perplexity": 33.0})
    about, figures = {"machine": "a GPU", "code": report.own_code()}, {"divergence": 0, "sqnr": 20}
    report.save([{**about, **(figures if r["tool"] else {}), **r} for r in rows])
    about, title, lines, *_, summary = report.tables()
    assert "a GPU" in about and title.endswith("float 25.00.")
    (line,) = [each for each in lines.splitlines() if "MXFP4" in each]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells[1:3] == ["33.00", "30.70 ± 0.10"]
    assert cells[3:] == ["31.00 (1 of 3 seeds)", "**30.00** (1 of 3 seeds)"]
    assert (
        summary.startswith("In 0 of 1 formats") and "MXFP4 (auto-round: 30, MASE: 30.7" in summary
    )


class Embedder(nn.Module):
    """States that are rows of a table, scaled."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.table = torch.randn(50, 8, generator=torch.Generator().manual_seed(0)) * scale

    def forward(self, input_ids, attention_mask):
        return {"last_hidden_state": self.table[input_ids]}


def test_embeddings_of_sentences_do_not_depend_on_padding(bench, tmp_path):
    models = bench("real_models")
    draw = np.random.default_rng(0)
    ids, mask = draw.integers(0, 50, (20, 6)), np.tile([1, 1, 1, 1, 0, 0], (20, 1))
    arrays = {"test_input_ids": ids, "test_attention_mask": mask}
    np.savez(tmp_path / "all.npz", **arrays)
    np.savez(tmp_path / "other.npz", **{**arrays, "test_input_ids": np.where(mask, ids, 7)})
    model, other = (
        models.SentenceModel("minilm", tmp_path, tmp_path / f"{n}.npz", 0) for n in ("all", "other")
    )
    reference = model.reference(Embedder())
    assert torch.equal(reference[0], other.reference(Embedder())[0])
    exact = model.measured(Embedder(), reference)
    assert exact == pytest.approx({"relative_error": 0, "cosine": 1, "neighbours": 1})
    off = model.measured(Embedder(1.1), reference)
    assert off["relative_error"] == pytest.approx(0.01, rel=1e-5)
    assert off["sqnr"] == pytest.approx(20, rel=1e-5) and off["cosine"] == pytest.approx(1)


def test_blocks_of_a_k_quant_may_span_rows(bench):
    here = bench("formats_here")
    weight = torch.randn(4, 320, generator=torch.Generator().manual_seed(0))
    layers = [nn.Linear(320, 4, bias=False), nn.Linear(256, 5, bias=False)]
    with torch.no_grad():
        for layer in layers:
            layer.weight.copy_(weight.reshape(layer.weight.shape))
    one, other = (here.in_k_quant(nn.Sequential(each), (), {})[0].weight for each in layers)
    assert torch.equal(one.flatten(), other.flatten())
    error = ((one - weight).square().sum() / weight.square().sum()).sqrt()
    assert 0.02 < error < 0.1


def test_importance_moves_the_error_of_a_k_quant_to_columns_without_input(bench):
    here = bench("formats_here")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 4, bias=False))
    weight = model[0].weight.detach().clone()
    squares = here.input_squares(
        model, (), [{"input": torch.randn(32, 256) * (1 + torch.arange(256) % 8 * 5)}]
    )
    assert squares["0"].shape == (256,) and squares["0"][7] > 100 * squares["0"][0]

    def error(by):
        rounded = here.in_k_quant(nn.Sequential(nn.Linear(256, 4, bias=False)), (), {})
        rounded[0].weight.data.copy_(weight)
        changed = here.in_k_quant(rounded, (), by)[0].weight - weight
        return float((changed.square() * squares["0"]).sum().detach())

    assert error(squares) < error({})
