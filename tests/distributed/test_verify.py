"""Plans run on two real processes compute what the model computes and talk as they say."""

import copy
import itertools
import random

import pytest
import torch
from distributed.derived_layers import DERIVED, beside, pick_named
from distributed.models import bert, images, losses, megatron_plan_pick, mlp, two
from passes.graphs import annotate
from torch import nn

from chop import MaseGraph
from chop.distributed.mesh import Mesh
from chop.distributed.plan import fixed_plan, make_plan
from chop.distributed.sharded_model import apply_plan
from chop.distributed.split_plan import make_split
from chop.distributed.step_bytes import sent_bytes, step_bytes
from chop.distributed.verify_plan import PlanRun, SplitRun, verify_plan, verify_plans
from chop.errors import ConfigError, GraphError


def random_pick(seed: int):
    """A strategy at random for each value: a bad plan, and as right as any."""
    draw = random.Random(seed)
    return lambda value: draw.choice(value.layouts(2))


def derived_jobs() -> dict[str, PlanRun]:
    """Quantised, packed and adapted layers, by columns and by rows."""
    names = ("mxint8", "mxint4, packed", "adapted mxint8", "int8")
    graph, inputs = beside({name: DERIVED[name] for name in names})
    return {
        f"derived by {name}s": PlanRun(
            graph, fixed_plan(graph, two(), pick_named(graph, name, 2)), inputs
        )
        for name in ("column", "row")
    }


def small_jobs() -> dict[str, PlanRun]:
    mlp_graph, mlp_inputs = mlp()
    picture, pixels = images()
    loss_graph, loss_inputs = losses()
    random_pictures = {
        f"images at random {seed}": PlanRun(
            picture, fixed_plan(picture, two(), random_pick(seed)), pixels
        )
        for seed in range(2)
    }
    return {
        **random_pictures,
        **derived_jobs(),
        "losses": PlanRun(
            loss_graph,
            fixed_plan(loss_graph, two(), pick_named(loss_graph, "split 0", 2)),
            loss_inputs,
        ),
        "images": PlanRun(picture, make_plan(picture, two()), pixels),
        "mlp": PlanRun(mlp_graph, make_plan(mlp_graph, two()), mlp_inputs),
        "mlp at random": PlanRun(
            mlp_graph, fixed_plan(mlp_graph, two(), random_pick(1)), mlp_inputs
        ),
    }


def bert_jobs() -> dict[str, PlanRun]:
    bert_graph, bert_inputs = bert()
    lm_graph, lm_inputs = bert(layers=1, cls="BertForMaskedLM")  # with tied weights
    heads = fixed_plan(bert_graph, two(), megatron_plan_pick())
    return {
        "bert": PlanRun(bert_graph, make_plan(bert_graph, two()), bert_inputs),
        "bert, forward": PlanRun(
            bert_graph, make_plan(bert_graph, two(), training=False), bert_inputs
        ),
        "bert by heads": PlanRun(bert_graph, heads, bert_inputs),
        "bert at random": PlanRun(lm_graph, fixed_plan(lm_graph, two(), random_pick(3)), lm_inputs),
    }


class Fetched(nn.Module):
    """Weights that nodes fetch, one of them for two products, and a bias that no batch splits."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(16, 64)), nn.Parameter(torch.randn(64, 16))
        self.shift = nn.Parameter(torch.randn(1, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x @ self.up) @ self.down + self.shift.tanh()
        return torch.tanh(y @ self.up) @ self.down


def step_jobs() -> dict[str, SplitRun]:
    """Steps with parameters that are freed between forward and backward, and micro-batches."""
    inputs = {"x": torch.randn(8, 16)}
    graph = MaseGraph(Fetched().eval(), dummy_in=inputs)
    jobs = {}
    for kind, count in itertools.product(("fsdp", "ddp", "megatron"), (1, 2)):
        copied = annotate(copy.deepcopy(graph), {"x": inputs["x"][: 8 // count]})
        split = make_split(copied, two(), micro_batches=count, kind=kind)
        jobs[f"{kind} with {count} micro-batches"] = SplitRun(copied, split, inputs)
    return jobs


def predicted(job: PlanRun | SplitRun) -> tuple[list[int], list[int]]:
    """Bytes that each process holds and sends, by the plan."""
    if isinstance(job, SplitRun):
        (device,) = step_bytes(job.graph, job.split, has_exchange=False)
        return [device.parameters] * 2, [device.sent] * 2
    sent = sent_bytes(job.plan, has_exchange=False)
    return [job.plan.cost.parameter_bytes] * 2, [sent] * 2


def gathers_parameters(job: PlanRun) -> bool:
    """True if FSDP2 gathers the parameters of a layer, all at once."""
    return any(t.can_overlap and t.collective == "all_gather" for t in job.plan.cost.talks)


def planned_collectives(job: PlanRun) -> dict[str, int]:
    """What the plan says, as gloo does it: it has no exchange, and torch gathers in its place."""
    planned = dict(job.plan.cost.collectives)
    planned["all_gather"] = planned.get("all_gather", 0) + planned.pop("all_to_all", 0)
    return {name: times for name, times in planned.items() if times}


FIRST = ("images at random 0", "mlp", "derived by columns", "derived by rows", "losses")
"""Plans that are tried every time."""


@pytest.mark.parametrize("some", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_plans_on_two_processes_compute_hold_and_talk_as_they_say(some):
    """Several plans at once, because starting the processes is what takes the time."""
    small = small_jobs()
    made = {name: small[name] for name in FIRST} if some else small | bert_jobs()
    made |= step_jobs()
    found = dict(zip(made, verify_plans(list(made.values())), strict=True))
    for name, job in made.items():
        result = found[name]
        assert result.is_equal, (name, result)
        assert (result.gradient_difference is not None) == job.plan.training, name
        held, sent = predicted(job)
        assert list(result.parameter_bytes) == held, name
        if name == "derived by columns":  # no sum is divided
            assert result.output_difference == 0, (name, result)
        if "images at random" not in name:  # indices have no gradient to exchange; plans count one
            assert list(result.sent_bytes) == sent, (name, result)
            if isinstance(job, PlanRun) and not gathers_parameters(job):
                assert result.collectives == planned_collectives(job), name


@pytest.mark.slow
def test_plans_on_a_grid_of_four_processes_are_right():
    graphs = [mlp(), bert(layers=1), bert(layers=1, cls="BertForMaskedLM")]
    grid = two(shape=(2, 2))
    made = [PlanRun(graph, make_plan(graph, grid), inputs) for graph, inputs in graphs]
    for job, found in zip(made, verify_plans(made), strict=True):
        assert found.is_equal, found
        assert found.parameter_bytes == (job.plan.cost.parameter_bytes,) * 4


def test_heads_split_over_two_devices_halve_the_layers():
    graph, _ = bert()
    plan = fixed_plan(graph, two(), megatron_plan_pick())
    assert plan.strategies["matmul"][0].name == "split 1"  # batch, heads, queries, keys
    layers = sum(p.numel() for p in graph.model.bert.encoder.layer.parameters())
    whole = sum(p.numel() for p in graph.model.parameters())
    assert plan.cost.parameter_bytes / 4 < whole - 0.47 * layers


def test_plans_for_different_numbers_of_devices_are_refused():
    graph, inputs = mlp()
    plans = [make_plan(graph, two(shape=(n,))) for n in (2, 4)]
    with pytest.raises(ConfigError, match=r"plans for one number of devices, got \[2, 4\]"):
        verify_plans([PlanRun(graph, plan, inputs) for plan in plans])


def test_a_missing_input_is_named():
    graph, _ = mlp()
    with pytest.raises(ConfigError, match="verify_plan: no value for input 'x'"):
        verify_plan(graph, make_plan(graph, two()), {})


def test_a_model_that_cannot_be_sent_is_an_error():
    class Local(nn.Linear):
        mase_leaf = True

    inputs = {"x": torch.randn(2, 4)}
    graph = annotate(MaseGraph(nn.Sequential(Local(4, 4)), dummy_in=inputs["x"]))
    inputs = {str(next(iter(graph.nodes)).target): inputs["x"]}
    plan = fixed_plan(graph, two(), lambda value: None)
    with pytest.raises(ConfigError, match="verify_plan: the model cannot be sent to processes"):
        verify_plan(graph, plan, inputs)


@pytest.fixture
def alone(tmp_path):
    """A process group of this process."""
    where = f"file://{tmp_path}/meeting"
    torch.distributed.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_one_device_runs_the_model_and_leaves_it_alone(alone):
    graph, inputs = mlp()
    before = copy.deepcopy(graph.model.state_dict())
    model = apply_plan(graph, make_plan(graph, Mesh((1,))), alone)
    assert torch.equal(model(inputs["x"]), graph.model(inputs["x"]))
    assert all(torch.equal(before[n], t) for n, t in graph.model.state_dict().items())
    with pytest.raises(GraphError, match="no value for input 'x'"):
        model()


def test_a_mesh_other_than_the_plans_is_refused(alone):
    graph, _ = mlp()
    with pytest.raises(ConfigError, match=r"plan is for a mesh of \[2\] devices, got \[1\]"):
        apply_plan(graph, make_plan(graph, two()), alone)
