import functools

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.actions import Subject
from chop.actions.hardware import emit_hardware
from chop.actions.hardware_formats import best_frac_width
from chop.errors import ChopError, ConfigError, HardwareError
from chop.hw.lower.design_cache import attached_design
from chop.hw.lower.verify import verify
from chop.hw.sim.emit import design_fingerprint
from chop.models import MLP
from chop.search import search
from chop.search.apply import apply
from chop.search.costs import COSTS, direction_of_cost
from chop.search.hardware_evaluate import FEWEST_ROWS, OBJECTIVES, HardwareEvaluator
from chop.search.hardware_space import HardwareSpace, HardwareTable
from chop.search.space import Space
from chop.search.trial import Pruned, TrialContext

ROWS = FEWEST_ROWS + 8
WAYS = {"accuracy": "maximize", **{name: direction_of_cost(name) for name in OBJECTIVES}}


@functools.cache
def graph():
    torch.manual_seed(0)
    return MaseGraph(MLP(8, (8,), 4), dummy_in={"x": torch.randn(4, 8)})


@functools.cache
def rows():
    """Inputs, and what the model itself says of them."""
    x = torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return x, graph().model(x).argmax(1)


class Counted:
    """A subject that counts the rows it is measured on."""

    def __init__(self):
        self.rows = 0
        whole = functools.partial(self.accuracy, first=0, last=ROWS)
        self.subject = Subject(
            lambda seed: graph(),
            lambda changed, seed: None,
            whole,
            lambda: [{"x": rows()[0]}],
            ROWS,
            self.accuracy,
        )

    def accuracy(self, changed, first, last):
        self.rows += last - first
        x, labels = rows()
        with torch.no_grad():
            right = changed.model(x[first:last]).argmax(1) == labels[first:last]
        return float(right.double().mean())


def evaluator(counted=None, **settings):
    table = HardwareTable(**{"widths": (3, 8), **settings})
    return HardwareEvaluator((counted or Counted()).subject, HardwareSpace(graph(), table))


@functools.cache
def found(folder):
    """Ten bits say no more than eight do: that trial is beaten before it is measured."""
    made = evaluator(paces=(4, 64), widths=(3, 8, 10))
    wide = made.hardware.initial()
    eight = [{name: 8 if n == 10 else n for name, n in point.items()} for point in wide]
    known = [*eight, wide[0]]
    result = search(made.space, made, WAYS, trials=10, storage=folder / "s.db", initial=known)
    return made, result


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return found(tmp_path_factory.mktemp("study"))


def test_the_space_has_widths_and_arithmetic_of_layers_sparsity_and_pace():
    space = HardwareSpace(graph())
    per_layer = {f"{n}.{e}" for n in space.layers for e in ("data_in", "weight", "multiplier")}
    assert set(space.dimensions) == per_layer | {"pace", "prune.sparsity"}
    assert space.paces == (1, 2, 4, 8, 16, 32, 64)  # 8 x 8 products by one lane, then more
    assert (
        Space.from_config({"hardware": {"by": "model"}}, "here", graph()).size == 3 * 3 * 2 * 7 * 2
    )


def test_lanes_can_be_chosen_for_each_layer():
    space = HardwareSpace(graph(), HardwareTable(folding="lanes", lanes=(1, 2)))
    first, last = space.layers
    point = {**space.initial()[0], f"{first}.lanes": "1x2", f"{last}.lanes": "2x2"}
    assert space.design_args(point)["parallelism"] == {first: (1, 2), last: (2, 2)}


def test_objectives_are_registered_with_their_directions():
    assert set(OBJECTIVES) <= set(COSTS)
    assert list(WAYS.values()) == ["maximize", "maximize", "minimize", "minimize"]


@pytest.mark.slow
def test_every_trial_of_the_front_is_emitted_as_it_was_scored(study, tmp_path):
    made, result = study
    front = result.pareto_front()
    assert len(front) > 2
    for number, trial in enumerate(front[:3]):
        rebuilt = apply(result.record, trial["number"], made)
        lowered, _ = emit_hardware(rebuilt, tmp_path / str(number))
        told = trial["attributes"]["hardware"]
        assert design_fingerprint(lowered.design) == told["design"]
        assert lowered.design.cycles() == told["interval"]
        assert made._scored(rebuilt, trial["params"]).costs == {
            n: trial["values"][n] for n in OBJECTIVES
        }


def test_the_front_has_both_arithmetics_and_trials_that_end_early_say_why(study):
    _, result = study
    kinds = [t["attributes"]["hardware"]["args"] for t in result.pareto_front()]
    assert any(each["multiplier"] for each in kinds)
    assert not all(each["multiplier"] for each in kinds)
    ended = [t["reason"] for t in result.trials if t["state"] == "pruned"]
    assert ended and all("is no worse in any objective" in reason for reason in ended)


def test_a_hopeless_trial_is_not_measured():
    counted = Counted()
    again = evaluator(counted)
    point = again.hardware.initial()[0]

    class Beaten(TrialContext):
        def beaten_by(self, values):
            return 7

    with pytest.raises(Pruned, match=r"trial 7 is no worse .* accuracy becomes 1: ended before"):
        again(point, Beaten())
    assert counted.rows == ROWS  # the uncompressed model's, once


def test_measuring_ends_where_hope_ends():
    counted = Counted()
    made = evaluator(counted, ceiling=1.0)
    point = {**made.hardware.initial()[0], "prune.sparsity": 0.5}
    for name in made.hardware.dimensions:
        if name.endswith((".weight", ".data_in")):
            point[name] = 3

    class Watched(TrialContext):
        def beaten_by(self, values):
            return 3 if values["accuracy"] < 1 else None

    with pytest.raises(Pruned, match=rf"ended after \d+ of {ROWS} rows"):
        made(point, Watched())
    assert 0 < counted.rows < ROWS


def test_what_does_not_fit_the_part_ends_at_once():
    made = evaluator(part="ecp5-12k", multipliers=("array",))
    with pytest.raises(Pruned, match=r"it does not fit ecp5-12k: .* DSP of 28 predicted"):
        made(made.hardware.initial()[0], TrialContext())


def test_a_pruned_model_without_multipliers_is_right_in_every_bit():
    made = evaluator(multipliers=("shift_add",))
    dense = made.hardware.initial()[0]
    sparse = made.build({**dense, "prune.sparsity": 0.5}, TrialContext())
    lowered = attached_design(sparse)
    assert verify(sparse, lowered, rows()[0][:16]).values
    plain = attached_design(made.build(dense, TrialContext())).design
    assert lowered.design.cost().register_bits < plain.cost().register_bits


def test_a_model_that_does_not_lower_is_refused_with_its_node():
    class Sorted(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return torch.sort(self.fc(x))[0]

    strange = MaseGraph(Sorted(), dummy_in={"x": torch.randn(2, 4)})
    with pytest.raises(HardwareError, match=r"here: the model cannot become hardware: node 'sort'"):
        HardwareSpace(strange, where="here")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"part": "ecp5-86k"}, "unknown part 'ecp5-86k'"),
        ({"part": "ice40-hx1k"}, "part: predict: no models of 'ice40-hx1k'"),
        ({"widths": (1,)}, "widths: 1. Allowed: 2 to 16"),
        ({"sparsities": (1.0,)}, "sparsities: 1.0"),
        ({"multipliers": ("shift",)}, "multipliers: unknown 'shift'"),
        ({"paces": (0,)}, "paces: 0 cycles"),
        ({"lanes": ()}, "lanes: nothing to choose from"),
    ],
)
def test_wrong_settings_are_told(settings, words):
    with pytest.raises(ConfigError, match=words):
        HardwareTable(**settings)


def test_the_point_goes_where_the_error_is_least():
    values = torch.tensor([0.1, -0.2, 0.15, 0.6])
    assert best_frac_width(values, 8) == 7
    assert best_frac_width(torch.tensor([0.25]), 8) == 8  # one place more would clip it
    assert best_frac_width(values, 2) in (1, 2)
    assert best_frac_width(torch.zeros(3), 8) > 8


def test_a_number_that_a_product_takes_has_a_format_of_its_own():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return torch.softmax(self.fc(x) * 0.25, -1)

    torch.manual_seed(0)
    x = 200 * torch.randn(8, 4)
    whole = MaseGraph(Scaled(), dummy_in={"x": x})
    subject = Subject(lambda seed: whole, None, lambda changed: 1.0, lambda: [{"x": x}])
    made = HardwareEvaluator(subject, HardwareSpace(whole, HardwareTable(widths=(8,))))
    built = made.build(made.hardware.initial()[0], TrialContext())
    assert verify(built, attached_design(built), x).values  # every bit as in PyTorch


def test_the_evaluator_wants_a_space_of_hardware():
    with pytest.raises(ChopError, match="no HardwareSpace"):
        HardwareEvaluator(Counted().subject, Space({}))
