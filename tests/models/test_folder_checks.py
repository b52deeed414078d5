"""Hugging Face folders that others send: the checks, and what still loads."""

import json
from pathlib import Path

import forged_folders
import pytest
import torch
from forged_folders import copy_valid, edit_json, load

from chop.cli.main import main
from chop.dataset.tokenized import load_tokenizer
from chop.errors import ConfigError, HubError
from chop.hub_config import check_config
from chop.models import get_model
from chop.models.folder_checks import DANGEROUS_OPTIONS
from chop.models.size_limits import SizeLimit, check_size

OWN_CODE = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
from transformers import BertConfig, BertForSequenceClassification
class Config(BertConfig):
    model_type = "own"
class Model(BertForSequenceClassification):
    config_class = Config
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = copy_valid(tmp_path / "own")
    (folder / "code.py").write_text(OWN_CODE)
    changes = {"model_type": "own", "auto_map": forged_folders.AUTO_MAP}
    edit_json(folder / "config.json", lambda config: config.update(changes))
    return folder


@pytest.mark.parametrize("kind", forged_folders.SIZES)
def test_a_valid_folder_loads(kind):
    model = load(forged_folders.valid(kind), kind)
    assert sum(p.numel() for p in model.parameters()) > 0


@pytest.mark.parametrize("kind", forged_folders.SIZES)
def test_a_valid_config_gives_random_weights(kind):
    assert load(forged_folders.valid(kind), kind, pretrained=False) is not None


def test_a_command_runs_no_code_of_a_folder_whatever_is_answered(
    own, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    assert main(["trace", str(own), "--out", str(tmp_path / "out")]) != 0
    assert "--trust-remote-code" in capsys.readouterr().err
    assert not list(tmp_path.rglob("ran"))


def test_trusted_code_of_a_folder_runs(own, monkeypatch, tmp_path):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "m"))
    model = load(own, trust_remote_code=True)
    assert type(model).__name__ == "Model"


def test_a_tokenizer_runs_no_code(own):
    (own / "tokenizer.json").unlink()
    settings = {"tokenizer_class": "Words", "auto_map": forged_folders.AUTO_MAP}
    (own / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"own Python .*--trust-remote-code"):
        load_tokenizer(own)


@pytest.mark.parametrize("name", DANGEROUS_OPTIONS)
def test_options_that_change_trust_are_refused(name, tmp_path):
    options = {name: True} if name != "trust_remote_code" else {}
    folder = forged_folders.valid("bert")
    if not options:
        arguments = ["trace", str(folder), "--out", str(tmp_path / "out")]
        assert main([*arguments, "--set", "model_options.trust_remote_code=true"]) != 0
        return
    with pytest.raises(ConfigError, match=f"model_options.{name}: not allowed"):
        get_model(str(folder), **options)


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 500_000_000, "max_position_embeddings": 10_485_760, "vocab_size": 262_144},
        {"dtype": "bfloat16", "torch_dtype": torch.float16, "attn_implementation": "sdpa"},
        {"_attn_implementation": {"text_config": "eager"}, "eos_token_id": [2**31]},
        {"attn_implementation": "paged|flash_attention_2", "dtype": None, "mask_value": -1e9},
    ],
)
def test_ordinary_configs_are_taken(config):
    check_config(config, "c", HubError)


def test_a_limit_counts_tensors_and_modules():
    limit = SizeLimit(100, 3, "a reason")
    check_size(lambda: torch.nn.Linear(4, 4), limit, "m")
    with pytest.raises(HubError, match=r"m: .* more than 100 bytes \(at 'weight', .*a reason"):
        check_size(lambda: torch.nn.Linear(8, 8), limit, "m")
    with pytest.raises(HubError, match=r"m: .* more than 3 modules, and a reason"):
        check_size(lambda: torch.nn.Sequential(*[torch.nn.ReLU() for _ in range(4)]), limit, "m")
    assert torch.nn.Linear(8, 8).weight.device.type == "cpu"
