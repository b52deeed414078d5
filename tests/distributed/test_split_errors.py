"""What a training on a mesh refuses, before it starts processes or in each of them."""

import copy
import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from distributed.models import mlp, two
from passes.graphs import annotate
from torch import nn

from chop import MaseGraph
from chop.actions.loss_graph import loss_graph
from chop.actions.shard_checkpoints import consolidate
from chop.actions.split_training import check_layers, check_split_arguments
from chop.cli.commands.train import TrainConfig
from chop.cli.console import Console
from chop.cli.main import main
from chop.cli.rank_launcher import launch
from chop.cli.split_run import MeshRequest, place_of
from chop.distributed.even_stages import even_stages
from chop.distributed.graph_parts import graph_parts, untied
from chop.distributed.process_group import ProcessRank
from chop.distributed.split_plan import make_split
from chop.errors import CheckpointError, ConfigError, DataError
from chop.kernels.layers import QLinearPacked

CONFIG = TrainConfig(model="mlp", dataset="digits", mesh="2x2", stages=2, batch_size=32)


def test_mesh_and_stages_decide_the_number_of_processes():
    assert CONFIG.processes == 8
    assert replace(CONFIG, mesh="3", stages=1).processes == 3
    assert TrainConfig().processes == 1 and not TrainConfig().is_split


def test_another_number_of_processes_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match=r"are for 8 processes, and 4 were started. Allowed: 8"):
        place_of(8)
    assert place_of(4) == ProcessRank(0, 4, 0)
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ConfigError, match="RANK, WORLD_SIZE and LOCAL_RANK are first, 4, 0"):
        place_of(4)


def test_a_call_without_processes_says_how_to_start_them(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(
        ConfigError, match=r"needs 4 processes. Start it as a program: `mase train`"
    ):
        place_of(4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"micro_batches": 5}, "micro_batches: 5 do not divide a batch of 32 rows"),
        ({"micro_batches": 1}, "micro_batches: 1 for 2 stages. Allowed: at least 2"),
        ({"plan": "zero"}, r"train.plan: 'zero'. Allowed: best, ddp, fsdp, megatron"),
        ({"memory": "much"}, "memory 'much': expected bytes"),
    ],
)
def test_requests_that_cannot_run_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        MeshRequest.of(replace(CONFIG, **changes))


def test_a_mesh_in_wrong_words_is_refused():
    with pytest.raises(ConfigError, match="mesh 'two': expected numbers of devices"):
        replace(CONFIG, mesh="two")
    with pytest.raises(ConfigError, match=r"mesh 0x2 and 2 stages\. Allowed: 1 or more of each"):
        replace(CONFIG, mesh="0x2")


def test_more_stages_than_the_model_has_layers_are_refused():
    graph, inputs = mlp()
    with pytest.raises(ConfigError, match=r"9 stages, but the model can be cut at \d+ places only"):
        make_split(annotate(graph, inputs), two(), stages=9, micro_batches=9)


class Twice(nn.Module):
    """One layer that runs in front of another and behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.between = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shared(torch.relu(self.between(torch.relu(self.shared(x)))))


def test_a_layer_that_two_stages_would_run_cannot_be_cut():
    inputs = {"x": torch.randn(4, 4)}
    graph = annotate(MaseGraph(Twice().eval(), dummy_in=inputs), inputs)
    with pytest.raises(ConfigError, match="2 stages, but the model can be cut at 0 places"):
        even_stages(graph, 2)
    with pytest.raises(ConfigError, match=r"parameter shared\.weight is read by stages 0 and 1"):
        graph_parts(graph, ["between"])


class Weighed(nn.Module):
    """Layers that all read a second value, which is computed in front of any product."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.factors = nn.Embedding(8, 4), nn.Embedding(8, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, factors = self.words(ids), self.factors(ids)
        for layer in self.layers:
            x = layer(x) * factors
        return x


def test_stages_are_cut_where_both_have_work_even_if_two_values_cross():
    inputs = {"ids": torch.arange(8)}
    graph = annotate(MaseGraph(Weighed().eval(), dummy_in=inputs), inputs)
    (first,) = even_stages(graph, 2)
    parts = graph_parts(graph, [first])
    assert [sum(name.startswith("layers_") for name in part.nodes) for part in parts] == [2, 2]
    assert len(parts[0].sends) == 2


def test_shared_weights_become_two_with_one_value():
    model = nn.ModuleDict({"first": nn.Linear(4, 4), "last": nn.Linear(4, 4)})
    model["last"].weight = model["first"].weight
    assert untied(model) == {"last.weight": "first.weight"}
    assert model["last"].weight is not model["first"].weight
    assert torch.equal(model["last"].weight, model["first"].weight)


def test_shared_packed_weights_become_two():
    packed = QLinearPacked.from_linear(nn.Linear(32, 32, bias=False), "mxint4")
    other = copy.copy(packed)
    other._buffers = dict(packed._buffers)
    model = nn.ModuleDict({"first": packed, "last": other})
    assert untied(model) == {}
    assert model["last"].codes is not model["first"].codes
    assert torch.equal(model["last"].codes, model["first"].codes)


def test_statistics_of_batches_are_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with pytest.raises(ConfigError, match=r"layer '1' \(BatchNorm1d\) keeps statistics of whole"):
        check_layers(model)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bf16": True}, "training.bf16: a training on a mesh does not follow it. Allowed: adam_"),
        ({"optim": "adafactor"}, "training.optim: adafactor does not treat every element alone"),
    ],
)
def test_arguments_that_have_no_effect_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        check_split_arguments(settings)


def test_labels_without_a_loss_are_refused():
    graph, inputs = mlp()
    labels = torch.zeros(4, dtype=torch.complex64)
    with pytest.raises(DataError, match=r"labels are torch\.complex64; a loss is known for"):
        loss_graph(graph, {**inputs, "labels": labels})


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="not a complete checkpoint of a split training"):
        consolidate(tmp_path, nn.Linear(2, 2))


def test_too_few_rows_are_refused(tmp_path, capfd):
    words = "train mlp --dataset digits --train-rows 8 --test-rows 8 --batch-size 16 --mesh 1"
    assert main([*words.split(), "--out", str(tmp_path / "out"), "--quiet"]) != 0
    assert "8 training rows, and a batch has 16" in capfd.readouterr().err


def test_a_process_that_fails_ends_the_others_and_its_message_is_shown(tmp_path):
    """The first process waits for the second, whose command line is wrong."""
    said = io.StringIO()

    def start(words, variables, errors):
        if errors is None:
            return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with Path(errors).open("wb") as written:
            return subprocess.Popen([sys.executable, "-m", "chop.cli", "nothing"], stderr=written)

    code = launch(2, ["train"], Console(err=said), start)
    assert code == 2
    assert "rank 1 (process" in said.getvalue()
    assert "ended with exit code 2; the other 1 were stopped" in said.getvalue()
    assert "no command 'nothing'" in said.getvalue()
