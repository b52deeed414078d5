"""What is taken from Optuna's private parts is in one file, and is as that file takes it."""

import inspect
import re
from pathlib import Path

import optuna
from optuna._transform import _SearchSpaceTransform
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.storages._rdb.storage import _create_scoped_session

import chop
from chop.search import optuna_private

SOURCE = Path(chop.__file__).parent
PRIVATE = re.compile(
    r"from optuna[\w.]*\._\w+|from optuna[\w.]* import _"
    r"|\._(?:trial_id|study_id|get_trials|thread_local|cached_frozen_trial|get_stale_trial_ids)\b"
    r"|\._(?:sample|restore_optimizer|init_optimizer|get_solution_trials|set_trial_attr\w*)\("
)


def test_the_release_that_is_installed_is_known():
    release = ".".join(optuna.__version__.split(".")[:2])
    assert release in optuna_private.KNOWN_RELEASES, optuna_private.__doc__


def test_private_names_are_used_in_one_file():
    users = {p.name for p in SOURCE.rglob("*.py") if PRIVATE.search(p.read_text())}
    assert users == {"optuna_private.py"}


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_the_methods_that_are_overridden_or_called_take_what_they_took():
    samplers = optuna.samplers
    assert parameters(samplers.TPESampler._sample) == ["self", "study", "trial", "search_space"]
    assert parameters(samplers.CmaEsSampler._restore_optimizer)[:2] == ["self", "completed_trials"]
    assert parameters(samplers.CmaEsSampler._init_optimizer)[:3] == ["self", "trans", "direction"]
    assert parameters(samplers.CmaEsSampler._get_solution_trials)[:3] == [
        *("self", "trials", "generation"),
    ]
    assert parameters(optuna.Study._get_trials) == ["self", "deepcopy", "states", "use_cache"]
    assert parameters(RDBStorage._set_trial_attr_without_commit)[1:] == [
        *("session", "model_cls", "trial_id", "key", "value"),
    ]
    assert parameters(RDBStorage._get_stale_trial_ids) == ["self", "study_id"]
    assert parameters(_create_scoped_session)[:1] == ["scoped_session"]
    assert {"transform_step", "transform_0_1"} <= set(parameters(_SearchSpaceTransform))


def test_the_tables_have_the_columns_that_are_written():
    columns = set(models.TrialParamModel.__table__.columns.keys())
    assert {"trial_id", "param_name", "param_value", "distribution_json"} <= columns
    assert {"trial_id", "key"} <= set(models.TrialUserAttributeModel.__table__.columns.keys())


def test_a_study_and_its_trials_have_their_numbers():
    study = optuna.create_study(storage=optuna.storages.InMemoryStorage())
    trial = study.ask()
    trial.report(0.5, 3)
    assert optuna_private.study_id(study) == 0
    assert optuna_private.trial_id(trial) == 0
    assert optuna_private.reported_values(trial) == {3: 0.5}


def test_a_sampler_is_seeded_with_the_samplers_in_it():
    sampler = optuna.samplers.TPESampler(seed=1)
    draws = []
    for _ in range(2):
        optuna_private.reseed(sampler, 7)
        draws.append((sampler._rng.rng.random(), sampler._random_sampler._rng.rng.random()))
    assert draws[0] == draws[1] and draws[0][0] != draws[0][1]
