import pytest
import torch
from passes.graphs import graph_of
from torch import nn

from chop.errors import PassError
from chop.passes.graph.transforms import fix_sizes_transform_pass


class Counted(nn.Module):
    """Counts the copies of a mask's rows, and adds codes of places."""

    def __init__(self):
        super().__init__()
        self.places = nn.Embedding(5, 4)

    def forward(self, x, mask):
        rows = mask.to(torch.bool)[:, None, :].expand(-1, 3, -1)
        places = torch.arange(x.shape[1], device=x.device)
        return x + self.places(places)[None], rows.sum(1)


def test_places_become_a_constant_and_copies_that_are_counted_stay():
    torch.manual_seed(0)
    x, mask = torch.randn(2, 5, 4), torch.tensor([[1, 1, 0], [1, 0, 0]])
    model = Counted()
    graph, told = fix_sizes_transform_pass(graph_of(model, (x, mask)))
    assert len(told["folded"]) == 1 and "expand" not in told["simplified"]
    for some in (x, x[:1], torch.randn(4, 5, 4)):
        rows = mask[torch.arange(len(some)) % 2]
        for found, wanted in zip(graph.model(some, rows), model(some, rows), strict=True):
            assert torch.equal(found, wanted)


def test_a_graph_without_example_inputs_is_refused():
    graph = graph_of(nn.Linear(2, 2), torch.randn(1, 2))
    graph.dummy_in = None
    with pytest.raises(PassError, match=r"made without example inputs"):
        fix_sizes_transform_pass(graph)
