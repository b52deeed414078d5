"""A model by name, compiled, and both timed."""

import time

import torch

from chop.dataset import get_dataset_info  # noqa: F401
from chop.models import get_model


def time_model(fn, n):
    data, start = torch.randn(2, 3, 32, 32), time.time()
    for _ in range(n):
        fn(data)
    return (time.time() - start) / n


task = "classification"
model = get_model("resnet18", pretrained=True, num_classes=1000).eval()
opt_model = torch.compile(model, backend="eager")
model.to("cpu")
opt_model.to("cpu")
assert time_model(model, 1) > 0
assert time_model(opt_model, 1) > 0
