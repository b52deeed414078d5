"""Training on several processes: equal to one process, and it survives the loss of a process."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from distributed.forked_ranks import ForkedRun, one_thread
from distributed.split_jobs import CHANGES, MODELS, SPLITS, split_job
from safetensors.torch import load_file

from chop.cli.main import main
from chop.dataset import get_dataset
from chop.distributed.verify_plan import processes_of_run, verify_plans

DIGITS = "train mlp --dataset digits --train-rows 128 --test-rows 32 --batch-size 16 --epochs 1"
WORDS = [*DIGITS.split(), "--save-steps", "2", "--set", "model_options.hidden=[16]"]
ROUNDING = 1e-5
"""Largest difference of a weight: sums have another order, in a few steps of rate 1e-3."""


def trained(out: Path) -> tuple[list[str], dict[str, torch.Tensor]]:
    """The losses of all steps and the weights."""
    return (out / "losses.csv").read_text().splitlines()[1:], load_file(out / "graph.safetensors")


def run(out: Path, count: int, *options: str, kill: int | None = None, at: int = 0) -> str:
    """Train on forked processes; `kill`: this rank ends by SIGKILL behind step `at`."""
    job = ForkedRun([*WORDS, *options, "--out", str(out)], out.with_suffix(".log"))
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.005):
            for file in (out / "checkpoints").rglob("losses.jsonl"):
                if len(file.read_text().splitlines()) >= at:
                    os.kill(job.ranks[kill or 0].pid, signal.SIGKILL)
                    return

    killer = threading.Thread(target=watch)
    if kill is not None:
        killer.start()
    with one_thread():
        code, message = job.launch(count)
    is_over.set()
    if kill is None:
        assert code == 0, job.shown.read_text()
    else:
        killer.join()
        assert code != 0, message
        assert f"rank {kill} (process " in message
        assert "was killed by signal 9 (SIGKILL); the other" in message
    assert all(process.poll() is not None for process in job.ranks)
    return message


def same(first: Path, second: Path) -> bool:
    """True if two trainings have the same losses and weights, bit by bit."""
    (losses, weights), (others, other_weights) = trained(first), trained(second)
    is_equal = all(torch.equal(weights[name], other_weights[name]) for name in weights)
    return losses == others and is_equal


def difference(first: Path, second: Path) -> float:
    """The largest difference of a weight between two trainings."""
    (_, weights), (_, others) = trained(first), trained(second)
    return max(float((weights[n] - others[n]).abs().max()) for n in weights)


def test_a_killed_training_on_two_processes_resumes_to_the_same_result(tmp_path):
    get_dataset("digits")  # forked processes need not import its reader
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(whole, 2, "--mesh", "2", "--plan", "fsdp")
    run(broken, 2, "--mesh", "2", "--plan", "fsdp", kill=1, at=5)
    run(broken, 2, "--mesh", "2", "--plan", "fsdp")
    assert json.loads((broken / "result.json").read_text())["train"]["resumed_from_step"] >= 4
    assert same(whole, broken)
    assert not (broken / "checkpoints").exists()


@pytest.mark.slow
def test_a_training_resumes_on_another_number_of_processes(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main([*WORDS, "--mesh", "1", "--out", str(whole), "--quiet"]) == 0
    run(broken, 2, "--stages", "2", kill=0, at=5)
    run(broken, 4, "--mesh", "2x2", "--plan", "megatron", kill=3, at=7)
    assert main([*WORDS, "--mesh", "1", "--out", str(broken), "--quiet"]) == 0
    assert difference(whole, broken) < ROUNDING


@pytest.mark.slow
def test_one_process_with_a_mesh_trains_like_one_without(tmp_path):
    split, plain = tmp_path / "split", tmp_path / "plain"
    assert main([*WORDS, "--mesh", "1", "--out", str(split), "--quiet"]) == 0
    assert main([*WORDS, "--out", str(plain), "--quiet"]) == 0
    weights, others = (load_file(each / "graph.safetensors") for each in (split, plain))
    assert all(torch.equal(weights[name], others[name]) for name in weights)


SEQUENCES = "train tiny_bert --dataset sequences --train-rows 32 --test-rows 16 --batch-size 8"
BERT = [
    *(*SEQUENCES.split(), "--epochs", "1", "--save-steps", "2"),
    *("--set", "model_options.hidden_dropout_prob=0.0"),
    *("--set", "model_options.attention_probs_dropout_prob=0.0"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "options"),
    [
        (4, ["--mesh", "2", "--stages", "2", "--plan", "fsdp", "--micro-batches", "4"]),
        (4, ["--mesh", "2x2", "--plan", "megatron"]),
        (8, ["--mesh", "2x2", "--stages", "2"]),
    ],
    ids=str,
)
def test_bert_trains_on_a_mesh_as_on_one_process(tmp_path, count, options, monkeypatch):
    monkeypatch.setitem(globals(), "WORDS", BERT)
    whole, split = tmp_path / "whole", tmp_path / "split"
    assert main([*BERT, "--mesh", "1", "--out", str(whole), "--quiet"]) == 0
    run(split, count, *options)
    assert difference(whole, split) < ROUNDING


TABLE = [(model, change) for model in MODELS for change in CHANGES]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4, 8])
def test_models_compute_the_same_in_pipelines_and_with_fsdp(count):
    """Outputs and gradients of every model and change, all in the same processes."""
    jobs = {}
    for split in SPLITS:
        shape, stages, _ = SPLITS[split]
        if stages * torch.Size(shape).numel() == count:
            jobs |= {
                (model, change, split): split_job(model, change, split) for model, change in TABLE
            }
    assert {processes_of_run(job) for job in jobs.values()} == {count}
    results = dict(zip(jobs, verify_plans(list(jobs.values())), strict=True))
    assert {name: r for name, r in results.items() if not r.is_equal} == {}


STARTERS = {
    "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "chop.cli"],
    "accelerate": [
        *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"),
        *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"),
        *("-m", "chop.cli"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("starter", STARTERS)
def test_other_starters_run_the_same_command(tmp_path, starter):
    out = tmp_path / "out"
    words = [*WORDS, "--mesh", "2", "--plan", "fsdp", "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, *STARTERS[starter], *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((out / "result.json").read_text())["train"]["processes"] == 2


@pytest.mark.slow
def test_the_processes_end_with_the_program_that_started_them(tmp_path):
    out = tmp_path / "out"
    words = [*WORDS, "--mesh", "2", "--epochs", "50", "--out", str(out)]
    started = subprocess.Popen(
        [sys.executable, "-m", "chop.cli", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    children: list[int] = []
    ends = time.monotonic() + 120
    while len(children) < 2 and time.monotonic() < ends:
        listed = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text()
        children = [int(each) for each in listed.split()]
        time.sleep(0.1)
    time.sleep(5)  # the processes have begun to watch
    started.kill()
    started.wait()
    ends = time.monotonic() + 60
    while any(map(is_running, children)) and time.monotonic() < ends:
        time.sleep(0.1)
    assert not any(map(is_running, children))
    shutil.rmtree(out, ignore_errors=True)


def is_running(process: int) -> bool:
    """True if a process exists and has not ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
