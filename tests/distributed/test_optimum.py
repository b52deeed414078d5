"""The planner against the definition of the cost and against every plan of small problems."""

import functools
import itertools
import math
import random

import pytest
import torch
import transformers
from covering import first_and_slow
from distributed.models import SLOW_DEVICES, bert, images, mlp
from passes.graphs import annotate
from torch import nn
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

from chop import MaseGraph
from chop.distributed.domains import Setting
from chop.distributed.memory_search import Solver
from chop.distributed.mesh import Mesh
from chop.distributed.optimum import DoesNotFitError
from chop.distributed.plan import _uses, decisions_of, make_plan, plan_program, price
from chop.distributed.pricing import Decisions, price_decisions
from chop.distributed.problem import PlanningProblem
from chop.distributed.program import program_of
from chop.distributed.solver import solve
from chop.distributed.variables import variables
from chop.ir.expert_mixtures import mixture_ops

GRAPHS = {"mlp": mlp, "images": images, "bert": bert}
MESHES = ["2", "2x2", "1x4", "2x2x2"]


def mesh_of(shape, **settings):
    return Mesh(**{"shape": shape, **SLOW_DEVICES, **settings})


@pytest.mark.share(2)
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("shape", first_and_slow(MESHES, 2))
@pytest.mark.parametrize("training", [True, False])
def test_the_objective_is_the_cost_of_the_plan(name, shape, training):
    program = program_of(GRAPHS[name]()[0])
    mesh = mesh_of(tuple(map(int, shape.split("x"))))
    for rate in (0.0, 1e-9, 1e-6):
        problem = PlanningProblem(program, Setting(mesh, training, training, training))
        found, bound = Solver(problem).at([rate] * len(problem.segments))
        decisions = decisions_of(problem, found)
        cost = price_decisions(program, mesh, decisions, training=training)
        additive = cost.memory_bytes - cost.transient_bytes
        assert found.seconds == pytest.approx(cost.step_seconds, rel=1e-9)
        assert found.bytes == pytest.approx(additive, rel=1e-6, abs=8)
        objective = found.seconds + rate * found.bytes
        if len(mesh.shape) < 3:  # every table fits: the bound is reached
            assert bound == pytest.approx(objective, rel=1e-9)
        else:
            assert 0.9 * objective < bound <= objective * (1 + 1e-9)


class Net(nn.Module):
    """Two to four layers with residual additions at random."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.width = draw.choice([2, 4, 6])
        count = draw.choice([1, 2, 2, 3])
        hidden = [draw.choice([2, 4, 8]) for _ in range(count)]
        self.up = nn.ModuleList(nn.Linear(self.width, h, bias=False) for h in hidden)
        self.adds = [draw.random() < 0.6 for _ in hidden]
        self.down = nn.ModuleList(nn.Linear(h, self.width, bias=False) for h in hidden)

    def forward(self, x):
        for up, down, is_added in zip(self.up, self.down, self.adds, strict=True):
            y = down(torch.relu(up(x)))
            x = x + y if is_added else y
        return x


class Chosen(nn.Module):
    """A mixture of experts behind a linear layer."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.width = draw.choice([2, 4])
        sizes = {"hidden_size": self.width, "intermediate_size": draw.choice([2, 4])}
        experts = {"num_local_experts": draw.choice([2, 4]), "num_experts_per_tok": 1}
        config = transformers.MixtralConfig(**sizes, **experts)
        self.fc, self.block = nn.Linear(self.width, self.width), MixtralSparseMoeBlock(config)
        for parameter in self.block.parameters():
            nn.init.normal_(parameter)

    def forward(self, x):
        return self.block(self.fc(x)[None])


@functools.cache
def net(seed: int):
    draw = random.Random(seed)
    module = (Chosen if seed % 10 == 9 else Net)(draw)
    x = torch.randn(draw.choice([2, 4]), module.width)
    graph = MaseGraph(module.eval(), dummy_in={"x": x}, custom_ops=mixture_ops(module))
    return program_of(annotate(graph))


def some_options(seed: int, most: int):
    """Allow at most `most` options of each value, at random."""
    kept: dict[str, set] = {}

    def allow(value, option):
        draw = random.Random(f"{seed} {value.name} {option}")
        seen = kept.setdefault(value.name, set())
        if str(option) in seen:
            return True
        if len(seen) < most and draw.random() < 0.4:
            seen.add(str(option))
            return True
        return False

    return allow


def all_decisions(problem):
    """Every combination of options, published layouts and recomputed segments."""
    names = list(problem.domains)
    options = [problem.domains[n].options for n in names]
    shared = list(problem.published)
    faces = [
        [_uses(problem.published[n], i) for i in range(len(problem.published[n].layouts))]
        for n in shared
    ]
    again = [(False, True) if s.kind.can_recompute else (False,) for s in problem.segments]
    for chosen in itertools.product(*options):
        given = dict(zip(names, chosen, strict=True))
        for uses in itertools.product(*faces):
            for flags in itertools.product(*again):
                pairs = zip(problem.segments, flags, strict=True)
                segments = [s.values for s, flag in pairs if flag]
                yield Decisions(given, dict(zip(shared, uses, strict=True)), segments)


def count(problem) -> int:
    sizes = [len(d.options) for d in problem.domains.values()]
    sizes += [len(f.layouts) for f in problem.published.values()]
    return math.prod(sizes) * 2 ** sum(s.kind.can_recompute for s in problem.segments)


def small_problem(seed: int, **settings):
    """A problem with at most 600 plans, and the time and bytes of each of them."""
    draw = random.Random(seed)
    shape = draw.choice([(2,), (2,), (4,), (2, 2), (2, 2), (1, 2), (2, 2, 2)])
    training = draw.random() < 0.7
    links = {"bandwidth": tuple(draw.choice([1e6, 1e8]) for _ in shape)}
    mesh = mesh_of(shape, flops=draw.choice([1e7, 1e9]), **links, **settings)
    setting = Setting(mesh, training, training, training)
    program = net(seed % 40)
    for most in (3, 2, 1):
        problem = PlanningProblem(program, setting, [some_options(seed, most)])
        if count(problem) <= 600:
            break
    costs = [price_decisions(program, mesh, d, training=training) for d in all_decisions(problem)]
    # the solver knows what training needs for a moment, and not the peak of inference
    peaks = [0 if training else c.transient_bytes for c in costs]
    return problem, [
        (c.step_seconds, c.memory_bytes - peak) for c, peak in zip(costs, peaks, strict=True)
    ]


GROUP = 10
"""Random cases per test."""


@pytest.mark.parametrize("group", first_and_slow(range(60), 2))
def test_no_plan_of_all_is_better_with_or_without_a_limit(group):
    """600 random problems; every plan of each of them is priced."""
    for seed in range(group * GROUP, (group + 1) * GROUP):
        problem, costs = small_problem(seed)
        least = min(seconds for seconds, _ in costs)
        assert Solver(problem).solve().best.seconds == pytest.approx(least, rel=1e-9), seed
        sizes = sorted({size for _, size in costs})
        for limit in {sizes[0], sizes[len(sizes) // 3], sizes[len(sizes) // 2]}:
            expected = min(seconds for seconds, size in costs if size <= limit)
            optimum = Solver(problem).solve(limit + 0.5)
            assert optimum.best.needs <= limit + 0.5, seed
            assert optimum.bound <= expected * (1 + 1e-9), seed
            assert optimum.best.seconds == pytest.approx(expected, rel=1e-9), seed
            assert optimum.gap <= 1e-9, seed
        with pytest.raises(DoesNotFitError):
            Solver(problem).solve(sizes[0] - 1)


def axis_by_axis(program, mesh):
    """Return the cost of the better order of planning one axis given the other."""
    costs = []
    for order in itertools.permutations(range(len(mesh.shape))):
        chosen = {}
        for axis in order:
            decisions = variables(program, mesh, axis, chosen, training=True)
            chosen[axis] = solve(decisions, 1e-18).chosen
        costs.append(price(program, mesh, chosen, training=True))
    return min(cost.step_seconds for cost in costs)


def transformer(batch: int):
    """One layer at the shapes of a model, without weights."""
    config = transformers.LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=1,
        num_attention_heads=32,
        vocab_size=1024,
        use_cache=False,
    )
    with torch.device("meta"):
        model = transformers.LlamaModel(config)
        ids = torch.zeros(batch, 4096, dtype=torch.long)
    return annotate(MaseGraph(model, dummy_in={"input_ids": ids}))


def test_planning_one_axis_after_the_other_collapses_to_data_parallelism():
    program = program_of(transformer(batch=8))
    mesh = Mesh((8, 8), bandwidth=(1e10, 4e11))
    plan = plan_program(program, mesh, training=True)
    assert plan.is_exact
    assert axis_by_axis(program, mesh) > 1.2 * plan.cost.step_seconds
    names = {s.name for n, o in plan.strategies.items() if n.endswith("proj") for s in o}
    assert {"column", "row"} <= names


def test_planning_creates_no_weights():
    graph = transformer(batch=2)
    make_plan(graph, Mesh((2, 2)))
    assert all(p.is_meta for p in graph.model.parameters())


@pytest.mark.slow
def test_a_limit_uses_what_only_saves_memory_and_is_kept():
    graph, _ = bert()
    mesh = mesh_of((2, 2))
    free = make_plan(graph, mesh)
    limits = [free.cost.memory_bytes * share // 100 for share in (95, 85, 75)]
    plans = [make_plan(graph, mesh_of((2, 2), memory=limit)) for limit in limits]
    for plan, limit in zip(plans, limits, strict=True):
        assert plan.cost.memory_bytes <= limit
        assert plan.bound_seconds <= plan.cost.step_seconds
    times = [plan.bound_seconds for plan in (free, *plans)]
    assert times == sorted(times)  # less memory never allows a faster plan
    assert plans[-1].recomputed


def test_equal_layers_are_eliminated_once_and_may_differ():
    graph, _ = bert(layers=4)
    mesh = mesh_of((2,))
    problem = PlanningProblem(program_of(graph), Setting(mesh, True, True, True))
    assert len({id(s.kind) for s in problem.segments}) < len(problem.segments)
    least = Solver(problem).at([1.0] * len(problem.segments))[0].bytes
    most = Solver(problem).solve().best.bytes
    kinds = [id(s.kind) for s in problem.segments]
    limits = [least + share * (most - least) for share in (0.6, 0.75, 0.9)]
    mixes = [Solver(problem).solve(limit).best.local for limit in limits]
    pairs = [set(zip(kinds, [tuple(v.items()) for v in mix], strict=True)) for mix in mixes]
    assert max(map(len, pairs)) > len(set(kinds))
