"""Settings of a design: config -> spec -> config, and what is refused on the way."""

import copy
import random
from dataclasses import fields

import pytest

from chop.config import dump_toml, parse_toml
from chop.errors import ConfigError, HardwareError
from chop.ir.design_spec import DesignSpec
from chop.passes.graph.analysis.add_hardware_metadata import AddHardwareMetadataArgs

NODES = ("fc1", "conv", "*", "a.b", "linear_1")


def table(draw, values):
    return {name: draw.choice(values) for name in draw.sample(NODES, draw.randint(0, 4))}


def random_spec(seed):
    draw = random.Random(seed)
    most = draw.choice((1, 3, 8, (4,), (4, 4, 1)))
    pairs = [(i, o) for i in (1, 2, 7) for o in (1, 4, 5)]
    return DesignSpec(
        most,
        table(draw, pairs),
        table(draw, ("array", "packed", "shift_add", "tables")),
        draw.randint(1, 9),
        draw.choice((12.5, 100.0, 400)),
        draw.choice(("memory", "external")),
        table(draw, ("memory", "external")),
        draw.randint(0, 4),
    )


@pytest.mark.parametrize("seed", range(50))
def test_a_spec_survives_its_config_also_as_toml(seed):
    spec = random_spec(seed)
    config = spec.to_config()
    assert DesignSpec.from_config(config) == spec == copy.deepcopy(spec)
    assert DesignSpec.from_config(parse_toml(dump_toml(config), "design.toml")) == spec
    assert AddHardwareMetadataArgs.from_config(config).spec() == spec
    assert set(config) == {each.name for each in fields(DesignSpec)}


def test_fifty_specs_set_every_field():
    specs = [random_spec(seed) for seed in range(50)]
    for each in fields(DesignSpec):
        assert len({repr(getattr(spec, each.name)) for spec in specs}) > 1, each.name


def test_a_spec_does_not_follow_later_changes_of_its_config():
    config = {"parallelism": {"fc1": [2, 2]}, "max_parallelism": [4, 4]}
    spec = DesignSpec.from_config(config)
    config["parallelism"]["fc1"][0] = 8
    config["max_parallelism"][0] = 8
    assert spec == DesignSpec((4, 4), {"fc1": (2, 2)})


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            {"clock": 9},
            r"design: unknown key 'clock'. Did you mean 'clock_mhz'\? Known: adders_per",
        ),
        ({"max_parallelism": 0}, "design: max_parallelism must be 1 or more, got 0"),
        ({"max_parallelism": [4, 0]}, r"design: max_parallelism must be 1 or more, got \[4, 0\]"),
        ({"max_parallelism": []}, r"design: max_parallelism must be 1 or more, got \[\]"),
        ({"max_parallelism": "4"}, r"design.max_parallelism: expected int, got '4'"),
        ({"parallelism": {"fc1": [2]}}, r"design.parallelism.fc1: expected 2 values, got 1"),
        ({"parallelism": {"fc1": [2, 0]}}, r"parallelism.fc1: \[2, 0\]. Allowed: lanes of 1 or"),
        ({"parallelism": 4}, r"design.parallelism: expected a mapping, got 4"),
        ({"multiplier": {"fc1": 2}}, r"design.multiplier.fc1: expected str, got 2"),
        ({"adders_per_stage": 0}, "design: adders_per_stage must be 1 or more, got 0"),
        ({"clock_mhz": 0}, "design: clock_mhz must be above 0 MHz, got 0"),
        ({"clock_mhz": float("nan")}, "design: clock_mhz must be above 0 MHz, got nan"),
        ({"weights": "outside"}, "design: weights: 'default' is 'outside'. Known: external, mem"),
        ({"node_weights": {"a": "extern"}}, "weights: 'a' is 'extern'. Did you mean 'external'"),
        ({"share_layers": -1}, "design: share_layers must be 0 or more, got -1"),
        ({"share_layers": 1.5}, "design.share_layers: expected int, got 1.5"),
    ],
)
def test_a_config_that_cannot_be_is_refused_with_its_key_and_what_is_allowed(config, told):
    with pytest.raises(ConfigError, match=told):
        DesignSpec.from_config(config)


@pytest.mark.parametrize("values", [{"max_parallelism": 0}, {"clock_mhz": "fast"}])
def test_a_spec_that_is_made_directly_is_checked_too(values):
    with pytest.raises(ConfigError):
        DesignSpec(**values)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (DesignSpec(parallelism={"fcl": (1, 1)}), "parallelism: no node 'fcl'. Did you mean 'fc"),
        (DesignSpec(multiplier={"fc3": "array"}), "multiplier: no node 'fc3'. Did you mean 'fc"),
        (DesignSpec(node_weights={"*": "memory"}), r"weights: no node '\*'. Known: fc1, fc2"),
    ],
)
def test_settings_of_nodes_that_a_graph_lacks_are_refused(spec, told):
    with pytest.raises(HardwareError, match=told):
        spec.check_nodes(["fc1", "fc2"])


def test_lanes_divide_the_channels_or_are_those_by_hand():
    spec = DesignSpec((4, 9), {"fc1": (3, 5)}, {"*": "packed", "fc1": "tables"})
    assert spec.of("fc1", 12, 12) == (3, 5) and spec.of("fc2", 6, 8) == (3, 4)
    assert spec.of("fc2", 7, 1) == (1, 1)
    assert (spec.multiplier_of("fc1"), spec.multiplier_of("fc2")) == ("tables", "packed")
