import pytest

from chop.errors import ConfigError
from chop.search import Space
from chop.search.training import ARGUMENTS, SHORT_NAMES, TrainingSpace


def test_short_names_become_arguments_of_the_trainer():
    space = TrainingSpace(
        {"learning_rate": {"low": 1e-5, "high": 1e-3, "log": True}, "epochs": [1]}
    )
    found = space.training_arguments({"learning_rate": 1e-4, "epochs": 1, "hidden_size": 32})
    assert found == {"learning_rate": 1e-4, "num_train_epochs": 1}


def test_every_short_name_stands_for_an_argument():
    assert set(SHORT_NAMES.values()) <= set(ARGUMENTS)


def test_a_setting_that_does_not_exist_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"unknown setting 'learning_rat'. Did you mean"):
        TrainingSpace({"learning_rat": [1e-3]})


def test_the_space_comes_from_a_table():
    space = Space.from_config({"training": {"batch_size": [8, 16]}}, "space")
    assert space.size == 2
