"""A plan in the words of transformers: it runs the plan by itself, with the model's values."""

import json
import subprocess
import sys

import pytest
import torch
import transformers
from distributed.models import SLOW_DEVICES
from passes.graphs import annotate
from torch import nn
from transformers.distributed.tensor_parallel import ALL_PARALLEL_STYLES

from chop import MaseGraph
from chop.actions.sharding import ShardArgs, shard
from chop.distributed.hand_plans import MEGATRON, hand_plans
from chop.distributed.mesh import Mesh
from chop.distributed.plan import make_plan
from chop.distributed.transformers_styles import transformers_plan
from chop.errors import ConfigError

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
FAMILIES = {"Llama": HEADS, "Qwen2": HEADS, "Mistral": HEADS}
PROGRAM = """
import json, sys, torch, transformers
from transformers.distributed import DistributedConfig

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
folder = sys.argv[1]
torch.distributed.init_process_group("gloo")
settings = DistributedConfig(**json.load(open(f"{folder}/transformers_plan.json")))
model = transformers.AutoModelForCausalLM.from_pretrained(
    folder, distributed_config=settings, dtype=torch.float32
)
ids, right = torch.load(f"{folder}/expected.pt")
with torch.no_grad():
    logits = model.eval()(ids).logits
logits = logits.full_tensor() if hasattr(logits, "full_tensor") else logits
held = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]
far = float((logits - right).abs().max() / right.abs().max())
if torch.distributed.get_rank() == 0:
    print(json.dumps({"far": far, "held": sum(p.numel() for p in held)}))
"""


def made(family, **settings):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES, **FAMILIES[family], **settings)
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def plan_of(model, devices=2):
    ids = torch.zeros(4, 8, dtype=torch.long)
    graph = annotate(MaseGraph(model, dummy_in={"input_ids": ids}))
    mesh = Mesh((devices,), **SLOW_DEVICES)
    return graph, mesh, hand_plans(graph, mesh, training=False)[MEGATRON]


def test_layers_are_split_in_pairs_and_the_head_is_gathered():
    graph, _, plan = plan_of(made("Llama"))
    found = transformers_plan(plan, graph)
    styles = found["tp_plan"]
    assert found["tp_size"] == 2 and styles["lm_head"] == "colwise_gather_output"
    by_style = {s: {n.split(".")[-1] for n in styles if styles[n] == s} for s in styles.values()}
    assert by_style["colwise"] == {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"}
    assert by_style["rowwise"] == {"o_proj", "down_proj"}
    if "replicate" in ALL_PARALLEL_STYLES:  # older versions have no style for whole layers
        assert by_style["replicate"] == {"embed_tokens"}
    assert set(styles.values()) <= set(ALL_PARALLEL_STYLES)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_runs_the_plan_with_the_values_of_the_model(family, tmp_path):
    model = made(family)
    graph, _, plan = plan_of(model)
    model.save_pretrained(tmp_path)
    ids = torch.randint(0, 64, (4, 8))
    torch.save((ids, model(ids).logits.detach()), tmp_path / "expected.pt")
    (tmp_path / "transformers_plan.json").write_text(json.dumps(transformers_plan(plan, graph)))
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ran = subprocess.run(
        [*command, str(tmp_path / "program.py"), str(tmp_path)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.strip().splitlines()[-1])
    assert told["far"] < 1e-5, "float32, sums in another order"
    whole = sum(p.numel() for p in model.parameters())
    split = sum(p.numel() for n, p in model.named_parameters() if "proj" in n or "head" in n)
    assert told["held"] == whole - split // 2


def test_a_plan_that_transformers_cannot_run_is_refused_by_its_value():
    graph, mesh, _ = plan_of(made("Llama"))
    with pytest.raises(ConfigError, match="reads 'input_ids' in layout S0, and it is computed in"):
        transformers_plan(make_plan(graph, mesh, training=False), graph)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    graph = annotate(MaseGraph(model, dummy_in={"input": torch.ones(4, 8)}))
    square = Mesh((2, 2), **SLOW_DEVICES)
    with pytest.raises(ConfigError, match=r"a mesh of 2x2\. Allowed: one axis"):
        transformers_plan(make_plan(graph, square, training=False), graph)


@pytest.mark.slow
def test_a_plan_that_splits_nothing_says_so():
    graph, *_ = plan_of(made("Llama"))
    fast = ShardArgs(mesh_shape=(2,), training=False, transformers=True, latency=(1.0,))
    result = shard(graph, fast)
    assert set(result.transformers["tp_plan"].values()) <= {"replicate"}
    assert "It splits nothing" in result.table()
    slow = ShardArgs(mesh_shape=(2,), training=False, transformers=True, flops=1e6)
    assert "times this plan." in shard(graph, slow).table()
