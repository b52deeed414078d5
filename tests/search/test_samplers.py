import pickle
import sys

import optuna
import pytest
import torch
import toys
from optuna.trial import TrialState

from chop.errors import ConfigError, MissingDependencyError, RegistryError
from chop.search import PRUNERS, SAMPLERS, Choice, Integer, Real, Space, search
from chop.search.samplers import TPESampler, make_pruner, make_sampler, one_thread, pruning_rule
from chop.search.study_storage import open_store

OBJECTIVES = {"loss": "minimize"}
FINITE = Space({"x": Integer(0, 5), "width": Integer(1, 4), "kind": Choice(("a", "b"))})
TRIALS = 12
MANY = [name for name in SAMPLERS if name not in ("cmaes", "tpe", "nsga2")]


def slow(*names):
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


def space_for(name):
    finite = isinstance(name, str) and SAMPLERS[name].needs_finite
    return FINITE if finite else toys.NUMBERS


def run(tmp_path, name, trials=TRIALS, objectives=OBJECTIVES, evaluate=toys.loss, **options):
    return search(
        options.pop("space", space_for(name)),
        evaluate,
        objectives,
        sampler=name,
        trials=trials,
        storage=tmp_path / f"{options.pop('file', name)}.journal",
        **options,
    )


def two(point, trial):
    trial.constraint("narrow", point["width"] - 6)
    return {"loss": point["x"] ** 2, "bits": float(point["width"])}


@pytest.mark.share(4)
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_gives_the_points_asked_for_and_follows_the_seed(tmp_path, name):
    runs = [run(tmp_path, name, seed=s, file=f) for s, f in ((0, "a"), (0, "b"), (1, "c"))]
    counted = [t for t in runs[0].trials if "copied_from" not in t["attributes"]]
    assert len({tuple(t["params"].values()) for t in counted}) == TRIALS
    assert runs[0].sampler == name
    first, again, other = ([t["params"] for t in r.trials] for r in runs)
    assert first == again, "the same seed, the same points"
    assert first != other


@pytest.mark.parametrize("name", ["tpe", "nsga2", *slow(*MANY)])
def test_samplers_take_several_objectives_and_constraints(tmp_path, name):
    both = {"loss": "minimize", "bits": "minimize"}
    result = run(tmp_path, name, objectives=both, evaluate=two)
    front = result.pareto_front()
    assert front
    assert all(t["params"]["width"] <= 6 for t in front)
    for one in front:
        beaten = [
            all(o["values"][k] <= one["values"][k] for k in both) and o["values"] != one["values"]
            for o in front
        ]
        assert not any(beaten)


@pytest.mark.parametrize("name", ["tpe", *slow("gp", "cmaes")])
def test_a_sampler_that_learns_beats_chance(tmp_path, name):
    space = Space({"x": Real(-2.0, 2.0), "y": Real(-2.0, 2.0)})

    def bowl(point, trial):
        return {"loss": (point["x"] - 1.1) ** 2 + (point["y"] + 0.7) ** 2}

    runs = {
        each: run(tmp_path, each, 40, evaluate=bowl, space=space).best["values"]["loss"]
        for each in (name, "random")
    }
    assert runs[name] < runs["random"]


def test_the_grid_visits_every_point_once(tmp_path):
    result = run(tmp_path, "grid", trials=FINITE.size)
    assert len(result.trials) == FINITE.size
    assert len({tuple(t["params"].values()) for t in result.trials}) == FINITE.size


def test_part_of_a_grid_is_spread_over_all_dimensions(tmp_path):
    result = run(tmp_path, "grid", trials=12)
    for name in FINITE.dimensions:
        assert len({t["params"][name] for t in result.trials}) > 1


def test_any_optuna_sampler_is_taken_as_it_is(tmp_path):
    own = optuna.samplers.RandomSampler(seed=7)
    result = run(tmp_path, own, space=FINITE, trials=5, file="own")
    again = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=7))
    expected = []
    for _ in range(5):
        trial = again.ask()
        FINITE.suggest(trial)
        expected.append(trial.params)
    assert [t["params"] for t in result.trials] == expected
    assert result.sampler == "RandomSampler"


def test_a_sampler_that_asks_to_stop_is_heard(tmp_path):
    points = {name: list(d.points) for name, d in FINITE.dimensions.items()}
    own = optuna.samplers.GridSampler({"x": points["x"], "width": [1], "kind": ["a"]})
    small = Space({"x": Integer(0, 5), "width": Choice((1,)), "kind": Choice(("a",))})
    result = run(tmp_path, own, space=small, trials=20, file="own")
    assert len(result.trials) == 6
    assert result.stopped == "its sampler has nothing more to propose"


def test_tpe_looks_back_on_a_bounded_number_of_trials(monkeypatch):
    seen = []
    inner = optuna.samplers.TPESampler._sample

    def spy(self, study, trial, space):
        seen.append([t.number for t in study._get_trials(deepcopy=False)])
        return inner(self, study, trial, space)

    monkeypatch.setattr(optuna.samplers.TPESampler, "_sample", spy)
    study = optuna.create_study(sampler=TPESampler(seed=0, history=20))
    study.optimize(lambda t: abs(t.suggest_int("x", 0, 10**6) - 7), n_trials=60)
    assert len(seen[-1]) == 20
    best = sorted(study.trials[:49], key=lambda t: t.value)[:10]
    assert {t.number for t in best} <= set(seen[-1]), "the best of the older are among them"
    assert set(range(50, 59)) <= set(seen[-1]), "and the latest"


def test_torch_keeps_one_thread_while_a_sampler_works_and_gets_its_own_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_an_unknown_sampler_is_answered_with_the_nearest():
    with pytest.raises(RegistryError, match=r"Unknown sampler 'tpf'\. Did you mean 'tpe'"):
        make_sampler("tpf", FINITE, 1, study="s", seed=0)


BIG = Space({str(i): Choice(tuple(range(10))) for i in range(7)})
LETTERS = Space({"a": Choice((1, 2))})


@pytest.mark.parametrize(
    ("name", "space", "objectives", "words"),
    [
        ("grid", toys.NUMBERS, 1, r"'grid': dimension 'x' has no list of values\. Give it as a Ch"),
        ("brute", toys.NUMBERS, 1, "'brute': dimension 'x' has no list of values"),
        ("grid", BIG, 1, r"'grid': the space has 10000000 points\. Allowed: 1000000"),
        ("cmaes", LETTERS, 1, "'cmaes': every dimension is a Choice, and it needs an Integer"),
        ("cma-es", toys.NUMBERS, 2, r"'cmaes': there are 2 objectives\. Allowed: one"),
    ],
)
def test_a_sampler_that_does_not_fit_is_refused(name, space, objectives, words):
    with pytest.raises(ConfigError, match=words):
        make_sampler(name, space, objectives, study="s", seed=0)


def test_a_sampler_without_its_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(MissingDependencyError, match=r"cmaes is .*masegraph\[search\]"):
        make_sampler("cmaes", toys.NUMBERS, 1, study="s", seed=0)


def test_pruners_of_optuna_are_for_one_objective():
    words = "pruner 'MedianPruner': there are 2 objectives, and Optuna's pruners take one"
    with pytest.raises(ConfigError, match=words):
        make_pruner(optuna.pruners.MedianPruner(), 2)
    for name in PRUNERS:
        assert isinstance(make_pruner(name, 2), optuna.pruners.NopPruner)
        assert (pruning_rule(name, 2) is None) == (name == "none")
        assert pruning_rule(name, 1) is None


@pytest.mark.parametrize("name", PRUNERS)
def test_pruners_end_bad_trials_early(tmp_path, name):
    def learns(point, trial):
        for step in range(8):
            trial.report(step, (point["x"] + 3) * (step + 1))
        return {"score": (point["x"] + 3) * 8}

    result = search(
        toys.NUMBERS,
        learns,
        {"score": "maximize"},
        sampler="random",
        pruner=name,
        trials=16,
        storage=tmp_path / "study.journal",
    )
    states = [t["state"] for t in result.trials]
    assert len(states) == 16
    assert ("pruned" in states) == (name != "none")
    assert result.best["values"]["score"] == max(
        t["values"]["score"] for t in result.trials if t["state"] == "complete"
    )


class Payload:
    """A pickle that leaves a trace when it is read."""

    def __init__(self, trace):
        self.trace = str(trace)

    def __reduce__(self):
        return open, (self.trace, "w")


def test_cmaes_never_unpickles_what_a_study_holds(tmp_path):
    run(tmp_path, "cmaes", trials=3, file="s")
    storage = open_store(tmp_path / "s.journal").storage
    study = storage.get_all_studies()[0]
    payload = pickle.dumps(Payload(tmp_path / "executed")).hex()
    number = storage.create_new_trial(study._study_id)
    storage.set_trial_system_attr(number, "cma:optimizer:0", payload)
    storage.set_trial_state_values(number, TrialState.COMPLETE, [1.0])
    run(tmp_path, "cmaes", trials=8, file="s")
    assert not (tmp_path / "executed").exists()


def test_cmaes_keeps_no_pickle_and_tells_its_generations_from_the_trials(tmp_path):
    run(tmp_path, "cmaes", trials=30, file="s")
    trials = optuna.load_study(
        study_name=None, storage=open_store(tmp_path / "s.journal").storage
    ).trials
    kept = {key: value for t in trials for key, value in t.system_attrs.items()}
    assert not [key for key in kept if "optimizer" in key]
    assert max(t.system_attrs.get("cma:generation", 0) for t in trials) >= 2


def test_optunas_own_cmaes_is_refused():
    with pytest.raises(ConfigError, match=r"runs pickles that it finds.*Take 'cmaes'"):
        make_sampler(optuna.samplers.CmaEsSampler(), toys.NUMBERS, 1, study="s", seed=0)
