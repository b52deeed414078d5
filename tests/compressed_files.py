"""Small folders of compressed-tensors, whole and forged, written by the specification."""

from __future__ import annotations

import copy
import functools
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from file_kinds import FAITHFUL, WRONG_SHAPES, Forged, Kind
from mutations import damaged, forged
from safetensors.torch import save_file
from torch import Tensor

from chop.export import from_compressed_tensors

WIDTH, ROWS, VOCAB = 64, 32, 40
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": ROWS,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
LAYERS = {
    "self_attn.q_proj": (WIDTH, WIDTH),
    "self_attn.k_proj": (32, WIDTH),
    "self_attn.v_proj": (32, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (ROWS, WIDTH),
    "mlp.up_proj": (ROWS, WIDTH),
    "mlp.down_proj": (WIDTH, ROWS),
}
SCHEMES: dict[str, dict[str, Any]] = {
    "int4": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16},
    "int8": {"num_bits": 8, "type": "int", "strategy": "channel"},
    "fp8": {"num_bits": 8, "type": "float", "strategy": "tensor"},
    "mxfp4": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32},
}
Tensors = dict[str, Tensor]


def parts(scheme: str, shape: tuple[int, int], draw: torch.Generator) -> Tensors:
    """Return the tensors of a layer in a scheme."""
    rows, columns = shape

    def codes(high: int, *size: int) -> Tensor:
        return torch.randint(0, high, size, generator=draw)

    if scheme == "int4":
        packed = codes(2**31, rows, columns // 8).int()
        return {"weight_packed": packed, "weight_scale": torch.full((rows, columns // 16), 0.1)}
    if scheme == "mxfp4":
        scale = torch.full((rows, columns // 32), 120, dtype=torch.uint8)
        return {"weight_packed": codes(256, rows, columns // 2).byte(), "weight_scale": scale}
    if scheme == "int8":
        whole = (codes(256, rows, columns) - 128).to(torch.int8)
        return {"weight": whole, "weight_scale": torch.full((rows, 1), 0.01)}
    values = torch.randn(rows, columns, generator=draw).to(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale": torch.tensor([0.1])}


def valid(rng: random.Random) -> tuple[dict[str, Any], Tensors]:
    """Return a config and tensors."""
    draw = torch.Generator().manual_seed(rng.randrange(1 << 30))
    scheme = rng.choice(list(SCHEMES))
    config = copy.deepcopy(CONFIG)
    weights = {**SCHEMES[scheme], "symmetric": True}
    group = {"targets": rng.choice((["Linear"], [r"re:.*proj"])), "weights": weights}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
    tensors = {
        "model.embed_tokens.weight": torch.randn(VOCAB, WIDTH, generator=draw),
        "lm_head.weight": torch.randn(VOCAB, WIDTH, generator=draw),
        "model.norm.weight": torch.ones(WIDTH),
        "model.layers.0.input_layernorm.weight": torch.ones(WIDTH),
        "model.layers.0.post_attention_layernorm.weight": torch.ones(WIDTH),
    }
    for name, shape in LAYERS.items():
        own = parts(scheme, shape, draw)
        tensors |= {f"model.layers.0.{name}.{part}": tensor for part, tensor in own.items()}
    return config, tensors


CLASSES = ("LlamaModel", "LlamaForSequenceClassification", "BertModel", "ViTForImageClassification")
CLASSES += ("PreTrainedModel", "T5ForConditionalGeneration", "WhisperForConditionalGeneration", "x")


def change_tensors(tensors: Tensors, rng: random.Random) -> None:
    """Change the shape, type, values or name of a tensor, or drop it."""
    name = rng.choice(list(tensors))
    held = tensors[name]
    choice = rng.randrange(7)
    if choice == 0:
        more = (
            held.reshape(-1),
            held[None],
            held[:-1],
            held[:0],
            held.t() if held.dim() == 2 else held,
        )
        tensors[name] = rng.choice((*more, held.reshape(-1)[:1].reshape(()))).contiguous().clone()
    elif choice == 1:
        kinds = (torch.int64, torch.bool, torch.complex64, torch.float64, torch.int8, torch.uint8)
        tensors[name] = held.to(torch.float32).to(rng.choice(kinds))
    elif choice == 2:
        wrong = held.to(torch.float32).clone()
        wrong.reshape(-1)[0] = rng.choice((float("nan"), float("inf"), -1.0, 0.0, 1e38))
        tensors[name] = wrong
    elif choice == 3:
        del tensors[name]
    elif choice == 4:
        tensors[rng.choice(("x", "\x1b[31m", "lm_head.weight_scale", ""))] = tensors.pop(name)
    elif choice == 5:
        tensors[
            f"model.layers.0.mlp.up_proj.{rng.choice(('weight_g_idx', 'weight_shape', 'bias'))}"
        ] = torch.zeros(rng.choice((1, 2, ROWS)))
    else:
        scales = [n for n in tensors if n.endswith("_scale")]
        sizes = rng.choice(((1,), (ROWS,), (2, 2, 2), (0,), (ROWS, 3)))
        tensors[rng.choice(scales or [name])] = torch.ones(sizes)


def judged(folder: Path, rng: random.Random) -> str:
    """Write a forged folder, read it, and compare the shapes with those of the config."""
    config, tensors = valid(rng)
    choice = rng.random()
    if choice < 0.35:
        config = forged(config, rng)
    elif choice < 0.45:
        config["architectures"] = [rng.choice(CLASSES)]
    if rng.random() < 0.5:
        change_tensors(tensors, rng)
    write(folder, config, tensors)
    if rng.random() < 0.1:
        file = folder / rng.choice(("config.json", "model.safetensors"))
        file.write_bytes(damaged(file.read_bytes(), rng))
    graph = from_compressed_tensors(folder)
    return FAITHFUL if has_shapes(graph.model) else WRONG_SHAPES


def has_shapes(model: Any) -> bool:
    """Return whether linear layers have the shapes of the config, and finite values."""
    found = dict(model.named_parameters())
    is_finite = all(bool(torch.isfinite(p).all()) for p in found.values())
    layers = {n: p for n, p in found.items() if n.endswith("proj.weight")}
    wanted = {
        n.removeprefix("model.layers.0.").removesuffix(".weight"): p for n, p in layers.items()
    }
    return is_finite and all(tuple(wanted[n].shape) == s for n, s in LAYERS.items() if n in wanted)


def write(folder: Path, config: Any, tensors: Tensors) -> None:
    """Write the two files."""
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")


# -- folders forged by hand ----------------------------------------------------------------------


def with_config(**changes: Any) -> tuple[Any, Tensors]:
    """Return a folder with other keys in its config."""
    config, tensors = valid(random.Random(0))
    return config | changes, tensors


def with_scale(scale: Tensor) -> tuple[Any, Tensors]:
    """Return a folder with another scale in a layer."""
    config, tensors = valid(random.Random(0))
    tensors["model.layers.0.mlp.up_proj.weight_scale"] = scale
    return config, tensors


def with_target(pattern: str) -> tuple[Any, Tensors]:
    """Return a folder whose layers are chosen by a regular expression."""
    config, tensors = valid(random.Random(0))
    config["quantization_config"]["config_groups"]["group_0"]["targets"] = [f"re:{pattern}"]
    return config, tensors


BY_HAND: dict[str, tuple[Any, str]] = {
    "a million layers": (
        lambda: with_config(num_hidden_layers=1 << 20),
        "num_hidden_layers is 1048576, and there are",
    ),
    "layers of a million rows": (
        lambda: with_config(intermediate_size=1 << 23),
        r"a model of \d+ elements, and the weights have",
    ),
    "a class that is no language model": (
        lambda: with_config(architectures=["LlamaModel"]),
        "'LlamaModel' is not a language model",
    ),
    "a class of another type": (
        lambda: with_config(architectures=["BertForMaskedLM"]),
        "'BertForMaskedLM' is not a language model of type 'llama'",
    ),
    "a kernel of the hub": (
        lambda: with_config(attn_implementation="someone/kernel"),
        "is a kernel of the hub",
    ),
    "scales of three dimensions": (
        lambda: with_scale(torch.ones(2, 2, 2)),
        r"weight_scale has shape \[2, 2, 2\]. Allowed: ",
    ),
    "a scale for 31 of 32 rows": (
        lambda: with_scale(torch.ones(31, 1)),
        r"weight_scale has shape \[31, 1\]. Allowed: ",
    ),
    "a slow regular expression": (
        lambda: with_target("(.*)*(.*)*(.*)*x"),
        "no group of|expression",
    ),
    "no regular expression": (lambda: with_target("("), "no regular expression"),
}


def forged_files() -> list[Forged]:
    """Return folders that are wrong in one place."""

    def made(make: Any, folder: Path) -> None:
        write(folder, *make())

    return [
        Forged(f"compressed-tensors: {name}", functools.partial(made, make), _read, words)
        for name, (make, words) in BY_HAND.items()
    ]


def _read(folder: Path) -> Any:
    return from_compressed_tensors(folder)


def warm_up() -> None:
    """Read a valid folder."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), *valid(random.Random(0)))
        _read(Path(folder))


KINDS = {"compressed-tensors": Kind(judged, 0.02)}
