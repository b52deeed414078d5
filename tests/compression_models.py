"""Small models and inputs that the compression tests share."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from chop import MaseGraph
from chop.passes import add_common_metadata_analysis_pass, init_metadata_analysis_pass

BERT_INPUTS = ["input_ids", "attention_mask", "labels"]
INTEGER = {
    "name": "integer",
    "data_in_width": 8,
    "data_in_frac_width": 4,
    "weight_width": 8,
    "weight_frac_width": 6,
    "bias_width": 8,
    "bias_frac_width": 6,
}
QUANTIZE = {"by": "type", "linear": {"config": INTEGER}}


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.act = nn.ReLU()
        self.fc2 = nn.Linear(16, 12)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.fc2(self.act(self.fc1(x)))))


def mlp() -> MLP:
    torch.manual_seed(0)
    return MLP().eval()


def mlp_graph() -> MaseGraph:
    return MaseGraph(mlp(), dummy_in={"x": torch.randn(5, 8)})


def bert(**fields: Any) -> nn.Module:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "vocab_size": 60,
        "max_position_embeddings": 32,
    }
    config = transformers.BertConfig(**(settings | fields))
    return transformers.BertForSequenceClassification(config).eval()


def bert_graph(**fields: Any) -> MaseGraph:
    """A graph of its own; the trace behind it is made once."""
    return copy.deepcopy(_traced_bert(tuple(fields.items())))


@functools.cache
def _traced_bert(fields: tuple[tuple[str, Any], ...]) -> MaseGraph:
    return MaseGraph(bert(**dict(fields)), hf_input_names=BERT_INPUTS)


def bert_batch(batch: int = 3, length: int = 10) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, length - 3 :] = 0
    return {
        "input_ids": torch.randint(0, 60, (batch, length), generator=generator),
        "attention_mask": mask,
        "labels": torch.randint(0, 2, (batch,), generator=generator),
    }


def annotated(graph: MaseGraph) -> MaseGraph:
    graph, _ = init_metadata_analysis_pass(graph)
    graph, _ = add_common_metadata_analysis_pass(graph)
    return graph


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(**bert_batch())["logits"]
