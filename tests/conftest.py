"""What every test shares: the model zoo on the path, one thread, a fixed seed."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)  # two workers share two cores


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
