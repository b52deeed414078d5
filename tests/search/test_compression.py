import pytest
from compression_models import mlp_graph

from chop.errors import ConfigError
from chop.pipelines import CompressionPipeline
from chop.search import Space
from chop.search.compression import CompressionSpace, PruneSpace, pass_args
from chop.search.precision import PrecisionSpace
from chop.search.training import TrainingSpace

INTEGER = {"integer": {"width": [8], "frac_width": [4]}}
PRUNE = {"sparsity": [0.0, 0.5], "method": ["l1-norm", "random"], "scope": "local"}


def space_of(graph):
    return CompressionSpace(PrecisionSpace(graph, INTEGER, joint=True), PruneSpace(PRUNE))


def test_a_point_gives_the_arguments_of_the_pipeline():
    graph = mlp_graph()
    space = space_of(graph)
    point = dict.fromkeys(("fc1", "fc2"), "integer(width=8, frac_width=4)") | {"head": "float"}
    point |= {"prune.sparsity": 0.5, "prune.method": "l1-norm"}
    _, info = CompressionPipeline()(graph, space.pass_args(point, seed=3))
    assert info["quantize_transform_pass"]["quantized"].keys() == {"fc1", "fc2"}
    assert info["prune_transform_pass"]["sparsity"] == pytest.approx(0.5, abs=0.01)


def test_a_sparsity_of_zero_prunes_nothing():
    prune = PruneSpace(PRUNE)
    assert prune.prune_config({"prune.sparsity": 0.0, "prune.method": "random"}) is None
    chosen = prune.prune_config({"prune.sparsity": 0.5, "prune.method": "random"}, seed=7)
    assert chosen["weight"] == {"scope": "local", "sparsity": 0.5, "method": "random"}
    assert chosen["seed"] == 7


def test_other_dimensions_of_a_product_are_ignored():
    graph = mlp_graph()
    space = TrainingSpace({"learning_rate": [1e-3]}) * space_of(graph)
    point = {"learning_rate": 1e-3, "prune.sparsity": 0.5, "prune.method": "random"}
    point |= dict.fromkeys(("fc1", "fc2", "head"), "float")
    assert pass_args(space, point).keys() == {"quantize_transform_pass", "prune_transform_pass"}


def test_a_space_of_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"nothing to search: give quantize, prune or both"):
        CompressionSpace()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sparsity": [0.5, 1.5]}, "sparsity must be at least 0 and below 1, got 1.5"),
        ({"sparsity": [0.5], "method": ["l3-norm"]}, "l3-norm"),
        ({"sparsty": [0.5]}, "unknown key 'sparsty'. Did you mean 'sparsity'"),
    ],
)
def test_settings_that_the_pass_refuses_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        PruneSpace(fields)


def test_the_space_comes_from_a_table():
    table = {"compression": {"quantize": {"formats": INTEGER}, "prune": {"sparsity": [0.1, 0.2]}}}
    space = Space.from_config(table, "space", mlp_graph())
    assert {"fc1", "prune.sparsity"} <= set(space.dimensions)
