import pytest
import torch
from transformers import BertConfig

from chop import MaseGraph
from chop.dataset import get_dataset
from chop.errors import ConfigError, HubError
from chop.models import MODELS, get_model, tiny_bert

INPUTS = {
    "mlp": "digits",
    "cnn": "digits",
    "residual_cnn": "digits",
    "tiny_vit": "digits",
    "tiny_bert": "sequences",
    "tiny_llama": "markov",
}
"""Model -> a dataset it takes as it is."""


def test_every_reference_model_has_a_dataset():
    assert set(INPUTS) == set(MODELS)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", MODELS)
def test_a_reference_model_takes_its_dataset_and_becomes_a_graph(name):
    torch.manual_seed(0)
    model = get_model(name).eval()
    data = dict(get_dataset(INPUTS[name])["test"].select(range(3)).columns)
    labels = data.pop("labels")
    inputs = data if name.startswith("tiny") else {"x": data["pixel_values"]}
    graph = MaseGraph(model, dummy_in=inputs)
    output, again = model(**inputs), graph.model(**inputs)
    logits = getattr(output, "logits", output)
    assert logits.shape[0] == 3
    assert logits.shape[-1] > labels.max()
    assert torch.equal(logits, getattr(again, "logits", again))


def test_a_config_gives_a_model_of_its_shape():
    config = BertConfig(
        vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, num_labels=3
    )
    model = get_model(config)
    assert model.classifier.out_features == 3
    assert get_model(config, task="masked-lm").config.vocab_size == 10


def test_a_folder_gives_the_model_that_was_saved_there(tmp_path):
    saved = tiny_bert(num_labels=4)
    saved.save_pretrained(tmp_path / "mine")
    loaded = get_model(tmp_path / "mine")
    assert all(
        torch.equal(a, b) for a, b in zip(saved.parameters(), loaded.parameters(), strict=True)
    )


def test_the_variable_names_a_shelf_of_models(tmp_path, monkeypatch):
    tiny_bert().save_pretrained(tmp_path / "mine")
    monkeypatch.setenv("MASE_MODELS", str(tmp_path))
    assert get_model("someone/mine").config.hidden_size == 32


def test_an_unknown_task_names_the_nearest():
    message = "get_model: unknown task 'causal_lm'. Did you mean 'causal-lm'"
    with pytest.raises(ConfigError, match=message):
        get_model(BertConfig(), task="causal_lm")


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(HubError, match="no such folder"):
        get_model(tmp_path / "nothing")
