"""Forged Hugging Face folders: configs, weights and tokenizers made to do harm."""

from __future__ import annotations

import functools
import io
import json
import pickle
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from file_kinds import EQUAL, FAITHFUL, OTHER, WRONG_SHAPES, Forged, Kind
from mutations import damaged, forged
from safetensors.torch import save_file
from scratch import new_folder
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from chop.dataset.tokenized import load_tokenizer
from chop.models import get_model

SIZES: dict[str, dict[str, Any]] = {
    "bert": {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    | {"intermediate_size": 16, "vocab_size": 32, "max_position_embeddings": 16},
    "llama": {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    | {"intermediate_size": 16, "vocab_size": 32, "num_key_value_heads": 1}
    | {"max_position_embeddings": 16},
    "gpt2": {"n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": 32, "n_positions": 16},
    "vit": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    | {"intermediate_size": 16, "image_size": 8, "patch_size": 4},
    "t5": {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 32},
    "mixtral": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    | {"intermediate_size": 8, "num_local_experts": 2, "num_key_value_heads": 1, "vocab_size": 32},
}
"""Small models, by type."""
TASKS = {
    "bert": "sequence-classification",
    "llama": "causal-lm",
    "gpt2": "causal-lm",
    "vit": "image-classification",
    "t5": "seq2seq-lm",
    "mixtral": "causal-lm",
}
CODE = """
import os
os.system("true")
from transformers import BertConfig as Config, BertForSequenceClassification as Model
from transformers import BertTokenizer as Words
"""
AUTO_MAP = {
    "AutoConfig": "code.Config",
    "AutoModelForSequenceClassification": "code.Model",
    "AutoTokenizer": ["code.Words", None],
}
HUGE = (2**24 + 1, 3 * 10**7, 10**9, 2**31, 2**40, 2**62)


@functools.cache
def valid(kind: str) -> Path:
    """Return a folder with a small model of a type, and a tokenizer."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **SIZES[kind])
    from chop.models.tasks import auto_class

    folder = new_folder("folders.")
    auto_class(TASKS[kind]).from_config(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+|\w+"), "isolated")
    words.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def copy_valid(folder: Path, kind: str = "bert") -> Path:
    """Copy the small model into `folder`."""
    shutil.copytree(valid(kind), folder, dirs_exist_ok=True)
    return folder


def edit_json(file: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change what a JSON file says."""
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


def load(folder: Path, kind: str = "bert", **options: Any) -> Any:
    """Load the model of a folder as commands do."""
    return get_model(str(folder), TASKS[kind], **options)


def encode(folder: Path) -> Any:
    """Load the tokenizer of a folder and encode a text."""
    return load_tokenizer(folder)("a" * 200 + "!")


# -- forged by hand --------------------------------------------------------------------------------


def _with_config(changes: dict[str, Any], kind: str = "bert") -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        copy_valid(folder, kind)
        edit_json(folder / "config.json", lambda config: config.update(changes))

    return write


def _with_code(model_type: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        _with_config({"auto_map": AUTO_MAP, "model_type": model_type})(folder)
        (folder / "code.py").write_text(CODE)

    return write


def _with_tokenizer_code(folder: Path) -> None:
    copy_valid(folder)
    told = {"auto_map": AUTO_MAP, "tokenizer_class": "Words"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    (folder / "tokenizer.json").unlink()
    edit_json(folder / "config.json", lambda c: c.update(model_type="own", auto_map=AUTO_MAP))
    (folder / "code.py").write_text(CODE)


class _Runs:
    def __reduce__(self) -> Any:
        import os

        return os.system, ("true",)


def _pickled(content: Any, *, is_zip: bool) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        copy_valid(folder)
        (folder / "model.safetensors").unlink()
        data = io.BytesIO()
        torch.save(content, data, _use_new_zipfile_serialization=is_zip)
        (folder / "pytorch_model.bin").write_bytes(data.getvalue())

    return write


def _plain_pickle(folder: Path) -> None:
    copy_valid(folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"w": _Runs()}))


def _compressed_pickle(folder: Path) -> None:
    copy_valid(folder)
    (folder / "model.safetensors").unlink()
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("x/data/0", b"\0" * (1 << 26))


def _with_index(name: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        copy_valid(folder)
        index = {"metadata": {}, "weight_map": {"bert.pooler.dense.bias": name}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return write


def _with_pattern(folder: Path) -> None:
    copy_valid(folder)

    def edit(rules: dict[str, Any]) -> None:
        rules["pre_tokenizer"]["pattern"]["Regex"] = "(a+)+$"

    edit_json(folder / "tokenizer.json", edit)


def _with_shape(name: str, shape: tuple[int, ...]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        from safetensors.torch import load_file

        copy_valid(folder)
        tensors = load_file(folder / "model.safetensors")
        tensors[name] = torch.zeros(shape)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    return write


def _with_file(name: str, text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        copy_valid(folder)
        (folder / name).write_text(text)

    return write


CONFIGS: list[tuple[dict[str, Any], str]] = [
    *(({key: "someone/kernel"}, "is a kernel of the hub") for key in ("attn_implementation",)),
    ({"_attn_implementation": "kernels-community/flash-attn"}, "is a kernel of the hub"),
    ({"_attn_implementation_internal": "a/b:c"}, "is a kernel of the hub"),
    ({"experts_implementation": "someone/kernel@main"}, "is a kernel of the hub"),
    ({"_experts_implementation": {"": "someone/kernel"}}, "is a kernel of the hub"),
    ({"text_config": {"attn_implementation": "someone/kernel"}}, "is a kernel of the hub"),
    ({"dtype": "load"}, "'load' is not a dtype of torch"),
    ({"torch_dtype": "nn"}, "'nn' is not a dtype of torch"),
    ({"text_config": {"dtype": "hub"}}, "'hub' is not a dtype of torch"),
    ({"dtype": ["float32"]}, "is not a dtype of torch"),
    ({"num_labels": 30_000_000}, "config.json.num_labels: 30000000. Allowed: at most 1048576"),
    ({"num_hidden_layers": 10**9}, "config.json.num_hidden_layers: 1000000000. Allowed: at most"),
    ({"num_hidden_layers": 10**7}, "describes a model of more than .* modules, and its weights"),
    ({"hidden_size": 2**22}, "describes a model of more than .* bytes .*, and its weights are"),
    ({"vocab_size": 2**24}, "describes a model of more than .* bytes .*, and its weights are"),
    ({"max_position_embeddings": 2**24}, "describes a model of more than .* bytes"),
    ({"intermediate_size": 2**24}, "describes a model of more than .* bytes"),
    ({"num_attention_heads": 0}, "transformers cannot load it"),
    ({"hidden_size": -8}, "transformers cannot load it"),
    ({"hidden_size": "8"}, "transformers cannot load it"),
    ({"hidden_size": 16}, "transformers cannot load it"),
    ({"model_type": "nowhere"}, "transformers cannot load it"),
    ({"model_type": None}, "transformers cannot load it"),
    ({"quantization_config": 3}, "transformers cannot load it"),
    ({"id2label": 7}, "transformers cannot load it"),
]


def forged_files() -> list[Forged]:
    """Return the folders forged by hand."""
    rows = [
        Forged(f"folder: config {i} {changes!r:.60}", _with_config(changes), load, words)
        for i, (changes, words) in enumerate(CONFIGS)
    ]
    own = r"config.json.auto_map: it asks to run its own Python \('code"
    rows += [
        Forged("folder: code for an unknown type", _with_code("own"), load, own),
        Forged("folder: code without a type", _with_code(""), load, own),
        Forged("folder: code of a tokenizer", _with_tokenizer_code, encode, "own Python"),
        Forged("folder: pattern of a tokenizer", _with_pattern, encode, "exponential time"),
        Forged("folder: pickle", _plain_pickle, load, "not a file of torch.save"),
        Forged(
            "folder: pickle in a zip", _pickled({"w": _Runs()}, is_zip=True), load, "cannot load it"
        ),
        Forged(
            "folder: old pickle", _pickled({}, is_zip=False), load, "not a file of torch.save since"
        ),
        Forged("folder: compressed pickle", _compressed_pickle, load, "has compressed records"),
        Forged("folder: index", _with_index("../x.safetensors"), load, "names of files of the fol"),
        Forged("folder: adapter", _with_file("adapter_config.json", "{}"), load, "an adapter"),
        Forged("folder: no config", _with_file("config.json", "[1]"), load, "expected a mapping"),
        Forged("folder: keys twice", _with_file("config.json", '{"a":1,"a":2}'), load, "twice"),
        Forged(
            "folder: other shape",
            _with_shape("bert.pooler.dense.bias", (95,)),
            load,
            "transformers cannot load it",
        ),
        Forged(
            "folder: weights cut",
            _with_file("model.safetensors", "\xff" * 8),
            load,
            "damaged safetensors",
        ),
    ]
    return rows


# -- forged at random ------------------------------------------------------------------------------


def _shapes(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _fits(model: torch.nn.Module) -> bool:
    """Return whether layers have the sizes that they say, and the tensors memory of their own."""
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            if module.weight.shape != (module.out_features, module.in_features):
                return False
            if module.bias is not None and module.bias.shape != (module.out_features,):
                return False
        if type(module) is torch.nn.Embedding and module.weight.shape != (
            module.num_embeddings,
            module.embedding_dim,
        ):
            return False
    return all(t.device.type == "cpu" for t in model.state_dict().values())


def _judge_model(folder: Path, kind: str) -> str:
    told = json.loads((folder / "config.json").read_text())
    model = load(folder, kind)
    if not _fits(model):
        return WRONG_SHAPES
    same_type = model.config.model_type == told.get("model_type")
    return FAITHFUL if same_type else OTHER


def folder_config(folder: Path, rng: random.Random) -> str:
    """Forge structure or sizes of a config."""
    kind = rng.choice(list(SIZES))
    copy_valid(folder, kind)

    def edit(config: dict[str, Any]) -> None:
        if rng.random() < 0.5:
            key = rng.choice([k for k, v in config.items() if type(v) is int] or ["x"])
            config[key] = rng.choice((*HUGE, 0, -1, 1, 3, 2**16, 2**20))
        else:
            forged(config, rng)

    edit_json(folder / "config.json", edit)
    return _judge_model(folder, kind)


def folder_weights(folder: Path, rng: random.Random) -> str:
    """Forge the header of the weights, or damage the file."""
    kind = rng.choice(list(SIZES))
    copy_valid(folder, kind)
    file = folder / "model.safetensors"
    data = file.read_bytes()
    if rng.random() < 0.6:
        length = int.from_bytes(data[:8], "little")
        header = forged(json.loads(data[8 : 8 + length]), rng)
        text = json.dumps(header).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    else:
        file.write_bytes(damaged(data, rng))
    return _judge_model(folder, kind)


def folder_tokenizer(folder: Path, rng: random.Random) -> str:
    """Forge or damage a file of a tokenizer."""
    copy_valid(folder)
    file = folder / rng.choice(("tokenizer.json", "tokenizer_config.json"))
    if rng.random() < 0.7:
        edit_json(file, lambda content: forged(content, rng))
    else:
        file.write_bytes(damaged(file.read_bytes(), rng))
    ids = load_tokenizer(folder)("a b")["input_ids"]
    return EQUAL if all(isinstance(i, int) for i in ids) else OTHER


KINDS = {
    "folder, config forged": Kind(folder_config, 0.12),
    "folder, weights forged": Kind(folder_weights, 0.08),
    "folder, tokenizer forged": Kind(folder_tokenizer, 0.06),
}


def warm_up() -> None:
    """Load a valid folder of each type: it imports the models of transformers."""
    for kind in SIZES:
        load(valid(kind), kind)
    encode(valid("bert"))
