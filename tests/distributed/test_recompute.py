"""Segments that a plan recomputes in backward: equal results, fewer bytes held."""

import dataclasses

import pytest
import torch
from distributed.memory_jobs import memory_job
from distributed.models import two
from torch.distributed.device_mesh import init_device_mesh

from chop.distributed.held_memory import StorageWatch
from chop.distributed.plan import make_plan
from chop.distributed.pricing import Decisions, price_decisions
from chop.distributed.program import program_of
from chop.distributed.segments import segments_of
from chop.distributed.sharded_model import apply_plan
from chop.distributed.verify_plan import mean_squares, verify_plans


@pytest.fixture
def alone(tmp_path):
    """A process group of this process."""
    where = f"file://{tmp_path}/meeting"
    torch.distributed.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def step(graph, plan, mesh, inputs):
    """Outputs and gradients of a step with dropout, and the bytes held between the passes."""
    model = apply_plan(graph, plan, mesh).train()
    torch.manual_seed(1)
    with StorageWatch([*model.parameters(), *model.buffers()]) as watch:
        watch.see(inputs.values())
        model.register_forward_hook(watch.at_end_of_forward)
        outputs = torch.utils._pytree.tree_leaves(model(**inputs))
    mean_squares(outputs).backward()
    return outputs, [p.grad for p in model.parameters()], watch.at_end


@pytest.mark.parametrize("name", ["mlp", "bert"])
def test_a_plan_that_recomputes_has_equal_gradients_and_holds_what_it_says(name, alone):
    job = memory_job(name, "1, best")
    free = job.plan
    limit = round(free.cost.memory_bytes - 0.4 * free.cost.activation_bytes)
    tight = make_plan(job.graph, two(shape=(1,), memory=limit))
    assert tight.recomputed and tight.cost.activation_bytes < 0.7 * free.cost.activation_bytes
    outputs, gradients, held = step(job.graph, free, alone, job.inputs)
    again, others, fewer = step(job.graph, tight, alone, job.inputs)
    assert all(map(torch.equal, outputs, again))
    assert all(map(torch.equal, gradients, others))  # the same elements are dropped again
    assert held == pytest.approx(free.cost.activation_bytes, rel=0.1)
    assert fewer == pytest.approx(tight.cost.activation_bytes, rel=0.1)


def all_recomputed(job):
    """The same job with every segment recomputed."""
    program, plan = program_of(job.graph), job.plan
    names = tuple(tuple(value.name for value in each) for each in segments_of(program))
    decisions = Decisions(plan.strategies, plan.published, names)
    cost = price_decisions(program, plan.mesh, decisions, training=True)
    plan = dataclasses.replace(plan, recomputed=names, cost=cost)
    return dataclasses.replace(job, split=dataclasses.replace(job.split, plan=plan))


@pytest.mark.slow
def test_recomputed_segments_compute_the_same_on_two_processes():
    jobs = {(m, "2, best in less"): memory_job(m, "2, best in less") for m in ("mlp", "bert")}
    for case in [("mlp", "2, fsdp"), ("gpt2", "2, megatron"), ("llama", "2, fsdp")]:
        jobs[case] = all_recomputed(memory_job(*case))
    for case, result in zip(jobs, verify_plans(list(jobs.values())), strict=True):
        assert result.is_equal, (case, result)
