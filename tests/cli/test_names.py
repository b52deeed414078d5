"""The names that options complete and take are those of the registries."""

import json
import typing

import pytest

from chop.actions import METRICS
from chop.cli.commands import COMMANDS
from chop.cli.commands.quantize import QuantizeConfig
from chop.cli.commands.search import SearchMode
from chop.cli.main import main
from chop.cli.names import REGISTRIES, check_names, names, registry
from chop.cli.option import options_of
from chop.cli.shared_options import ModelOptions
from chop.config import parse
from chop.dataset import DATASETS
from chop.errors import ConfigError
from chop.models import TASKS
from chop.registry import Registry
from chop.search import SAMPLERS
from chop.search.evaluate import EVALUATORS


def option_of(command, flag):
    return next(o for o in options_of(COMMANDS[command].config) if o.flag == flag)


def test_an_option_offers_what_is_registered_now():
    assert option_of("search", "--sampler").values == tuple(SAMPLERS)  # nsga3 and brute among them
    with DATASETS.restored():
        DATASETS.register("mine", dict)
        assert option_of("train", "--dataset").values == (
            *("digits", "markov", "sequences"),
            "mine",
        )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("search mlp --formats integer --sampler tpf", "search.sampler: unknown sampler 'tpf'"),
        ("search mlp --formats integer --pruner medan", "Did you mean 'median'?"),
        ("search mlp --formats integer --engine threads", "Known: processes, ray."),
        ("search mlp --formats integer --costs bits", "search.costs: unknown cost 'bits'"),
        ("pass prune_pass mlp", "pass.name: unknown pass 'prune_pass'"),
        ("pass", "no pass given. `mase list passes` shows them."),
        ("sweep", "no sweep given. Known: fixed_point_width"),
        ("list format", "list: kind: unknown 'format'. Did you mean 'formats'?"),
    ],
)
def test_a_name_that_is_not_registered_is_refused_before_the_command_starts(line, told, capsys):
    assert main(line.split()) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("kind", REGISTRIES)
def test_every_kind_is_a_registry_that_is_not_empty(kind):
    assert isinstance(registry(kind), Registry) and len(registry(kind))


def test_a_field_of_an_unknown_kind_is_an_error_at_import():
    with pytest.raises(ConfigError, match=r"unknown kind 'sampler'. Did you mean 'samplers'"):
        names("sampler")


def test_everything_is_listed_with_what_it_is(capsys):
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["names"]
    assert set(found) == set(REGISTRIES)
    for kind in (
        "formats",
        "passes",
        "models",
        "datasets",
        "sweeps",
        "samplers",
        "methods",
        "observers",
    ):
        assert all(row["what"] for row in found[kind]), kind


def values(cls, field):
    return typing.get_args(typing.get_type_hints(cls)[field])


def test_choices_that_are_types_are_those_of_the_tables():
    names, nothing = values(ModelOptions, "task")
    assert set(typing.get_args(names)) == set(TASKS)
    assert nothing is type(None)
    assert set(option_of("eval", "--metric").values) == set(METRICS)
    assert set(typing.get_args(SearchMode)) == set(EVALUATORS)


@pytest.mark.parametrize("given", ["smooth, gptq", ["smooth", "gptq"]])
def test_methods_in_a_file_are_a_list_or_a_text_with_commas(given):
    config = parse(QuantizeConfig, {"model": "mlp", "width": 8, "method": given}, "quantize")
    check_names(config, "quantize")
    assert config.method == ("smooth", "gptq")


def test_a_misspelt_dataset_is_answered_with_the_nearest_name(mase):
    ran = mase("eval mlp --dataset digts")
    assert ran.code == 2
    assert "no dataset 'digts' without text. Did you mean 'digits'?" in ran.err
