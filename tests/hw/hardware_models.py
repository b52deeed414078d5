"""Models that become hardware in the tests, and their graphs with formats set by hand."""

import functools

import torch
from torch import nn

from chop.ir.graph import MaseGraph
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)


def fixed_graph(model, x, precision=(8, 4), **formats):
    """The graph of `model` with every tensor of type fixed; `formats` by name of an argument."""
    graph = MaseGraph(model.eval(), dummy_in=x)
    graph, _ = init_metadata_analysis_pass(graph)
    graph, _ = add_common_metadata_analysis_pass(graph)
    for node in graph.fx_graph.nodes:
        common = node.meta["mase"]["common"]
        for name, value in (*common["args"].items(), *common["results"].items()):
            if value.is_tensor:
                value["type"] = "fixed"
                value["precision"] = list(formats.get(name, precision))
    return graph


class SmallMlp(nn.Module):
    """Linear(4, 8) and a rectifier."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 8)

    def forward(self, x):
        return torch.relu(self.fc1(x))


class DigitsMlp(nn.Module):
    """64-32-10 on images of 8 x 8."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(torch.flatten(x, 1))))


class DigitsCnn(nn.Module):
    """A convolution, a residual block of two, pooling and a linear layer."""

    def __init__(self, channels=8):
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(channels * 16, 10)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.conv2(torch.relu(self.conv1(x))))
        return self.head(torch.flatten(self.pool(x), 1))


@functools.cache
def digits():
    """Training and test images (360 of them) and labels of scikit-learn's digits."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, labels, test_size=360, random_state=0, stratify=labels)
    train_x, test_x = (torch.tensor(p, dtype=torch.float32).reshape(-1, 1, 8, 8) for p in parts[:2])
    return train_x, test_x, torch.tensor(parts[2]), torch.tensor(parts[3])


def train(model, epochs=8):
    """`model` trained on the digits, in evaluation mode."""
    train_x, _, train_y, _ = digits()
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(train_x)).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(train_x[batch]), train_y[batch]).backward()
            optimiser.step()
    return model.eval()
