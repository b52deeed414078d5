"""Compressed models as folders of transformers, and the quantizer that loads them.

Importing this module registers the method "mase" in transformers. Then
`AutoModel….from_pretrained(folder)` loads a folder of `to_huggingface`, and
`from_pretrained(name, quantization_config=MaseConfig(…))` compresses each weight as it is read.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from chop.arguments import NEW_FOLDER, an, takes
from chop.errors import ExportError
from chop.export.export_report import ExportReport, TensorRecord
from chop.export.exported_weights import Weight, as_in, quantized_calls, weights_of
from chop.export.hf_folders import (
    config_of,
    differ,
    empty_model,
    names_to_write,
    tied_names,
    write_folder,
)
from chop.export.hf_layers import compact, compressed, make_layer, spec_of
from chop.files import shown
from chop.ir.graph import MaseGraph
from chop.nn.modules.lora import LoRALinear
from chop.nn.quantized.layer import layer_class
from chop.nn.quantizers.formats import find_format
from chop.nn.quantizers.operands import plain_names

METHOD = "mase"
SCHEMA = 1
"""Version of `quantization_config`."""
PAGEOUT = 21
"""MADV_PAGEOUT of Linux (5.4): release pages, keep their content. Other systems ignore it."""
GRAPH = an(MaseGraph, "a MaseGraph")


@register_quantization_config(METHOD)
class MaseConfig(QuantizationConfigMixin):
    """Settings by which transformers compresses a model as it loads it.

    `config` is the config of a number format, as for quantised layers. For weights alone:
    `{"name": "mxint", "weight_width": 4, "data_in_width": "NA", "bias_width": "NA"}`.
    `modules_to_not_convert` are layers to skip, by name or by the end of it. `layers` describes the
    layers of a folder that is compressed already.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        modules_to_not_convert: list[str] | None = None,
        layers: Mapping[str, Any] | None = None,
        schema: int = SCHEMA,
        **unknown: Any,
    ) -> None:
        self.quant_method: Any = METHOD
        unknown.pop("quant_method", None)
        if unknown:
            raise ExportError(f"quantization_config: unknown key {shown(min(unknown))}.")
        if schema != SCHEMA:
            raise ExportError(
                f"quantization_config.schema: {shown(schema)}. This release reads {SCHEMA}."
            )
        if config is not None:
            config = plain_names(config, "quantization_config.config")
            name = config.get("name")
            if not isinstance(name, str):
                raise ExportError(
                    "quantization_config.config: key 'name' is missing: it names the format."
                )
            form = find_format(name, "quantization_config.config.name")
            layer_class(nn.Linear, form).parse(config, "quantization_config.config")
        self.config = None if config is None else dict(config)
        self.modules_to_not_convert = list(modules_to_not_convert or ["lm_head"])
        self.layers = dict(layers or {})
        self.schema = schema


@register_quantizer(METHOD)
class MaseQuantizer(HfQuantizer):
    """Quantizer that creates layers on codes, or compresses each weight as it is loaded."""

    requires_calibration = False
    quantization_config: MaseConfig

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: no other package is needed."""

    def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
        """Return True if this weight must be compressed."""
        config = self.quantization_config
        path, _, leaf = param_name.rpartition(".")
        if self.pre_quantized or config.config is None or leaf != "weight":
            return False
        skipped = any(f".{path}".endswith(f".{s}") for s in config.modules_to_not_convert)
        return not skipped and type(model.get_submodule(path)) is nn.Linear

    def get_quantize_ops(self) -> Any:
        """Return the operation on each weight."""
        return _Compress(self)

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        for path, spec in self.quantization_config.layers.items():
            where = f"quantization_config.layers.{path}"
            try:
                old = model.get_submodule(path)
            except AttributeError as error:
                raise ExportError(f"{where}: the model has no such layer.") from error
            with torch.device("meta"):
                _put(model, path, make_layer(spec, old, where))
        layers = self.quantization_config.layers
        # a layer on codes shares no weight, even if its class says so
        tied = getattr(model, "all_tied_weights_keys", None) or {}
        own = {k: v for k, v in tied.items() if {owner_of(k), owner_of(v)}.isdisjoint(layers)}
        if len(own) != len(tied):
            model.all_tied_weights_keys = own

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> None:
        if not self.pre_quantized:
            self.quantization_config.layers = layer_specs(model)
            self.quantization_config.config = None

    @property
    def is_trainable(self) -> bool:
        """False: codes do not train."""
        return False

    def is_serializable(self, *args: Any, **kwargs: Any) -> bool:
        """Return True: `save_pretrained` works."""
        return True


class _Compress(ConversionOps):
    def __init__(self, quantizer: MaseQuantizer) -> None:
        self.quantizer = quantizer

    def convert(  # type: ignore[override]  # transformers calls it by these keywords
        self,
        input_dict: dict[str, Any],
        model: Any = None,
        full_layer_name: str | None = None,
        missing_keys: Any = None,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        """Replace the layer of the weight by a compressed one."""
        assert full_layer_name is not None, "a weight has a name"
        (value,) = input_dict.values()
        weight = value[0] if isinstance(value, list) else value
        path = full_layer_name.rpartition(".")[0]
        config = self.quantizer.quantization_config.config
        assert config is not None, "checked by param_needs_quantization"
        _put(model, path, compressed(model.get_submodule(path), weight, config))
        release_pages(weight)
        if missing_keys is not None:
            missing_keys.discard(full_layer_name)
        return {}


def _put(model: nn.Module, path: str, layer: nn.Module) -> None:
    owner, _, leaf = path.rpartition(".")
    layer.train(model.training)
    layer._is_hf_initialized = True  # type: ignore[assignment]
    setattr(model.get_submodule(owner), leaf, layer)


def release_pages(tensor: Tensor) -> None:
    """Release the memory pages of a mapped tensor that will not be read again.

    A file that transformers loads from stays mapped until all of it is loaded, so pages that were
    read would stay in memory. The values are safe: a page is read again on demand.
    """
    if sys.platform != "linux" or tensor.device.type != "cpu":
        return
    storage = tensor.untyped_storage()
    start = tensor.data_ptr()
    end = min(start + tensor.nbytes, storage.data_ptr() + storage.nbytes())
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE  # whole pages of this tensor alone
    length = end // mmap.PAGESIZE * mmap.PAGESIZE - first
    if length > 0 and tensor.is_contiguous():
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), ctypes.c_int(PAGEOUT))


def layer_specs(model: nn.Module) -> dict[str, Any]:
    """Return descriptions of the layers of a model that are not layers of torch."""
    specs = ((path, spec_of(module)) for path, module in model.named_modules())
    return {path: spec for path, spec in specs if spec is not None}


@takes(ExportError, mg=GRAPH, path=NEW_FOLDER)
def to_huggingface(mg: MaseGraph, path: str | Path) -> ExportReport:
    """Write a compressed model of transformers as a folder that `from_pretrained` loads.

    Layers in formats of at most 8 bits are stored as codes, packed layers as their bytes, pruned
    layers with their own sizes. If only sizes changed and the config can express them, or nothing
    changed, the folder loads without this package. Functions that round their operands, and
    adapters, raise ExportError.
    """
    config = config_of(mg, "to_huggingface")
    empty = empty_model(mg, config, "to_huggingface")
    for node in quantized_calls(mg):
        raise ExportError(
            f"to_huggingface: node '{node.name}' rounds the operands of a function; a folder "
            "of transformers has layers alone. Use MaseGraph.export."
        )
    report = ExportReport("huggingface", Path(path))
    settings = {**config.to_dict(), "architectures": [type(mg.model).__name__]}
    specs, tensors, is_untied = _layers(mg, empty, report)
    if is_untied:
        settings["tie_word_embeddings"] = False  # codes and floats share no parameter
    smaller = _plain_sizes(specs, settings)
    if smaller is not None:
        settings, specs = {**settings, **smaller}, {}
    dtypes = {t.dtype for t in tensors.values() if t.is_floating_point()}
    settings["dtype"] = "float32" if torch.float32 in dtypes else config.to_dict().get("dtype")
    if specs:
        fields = MaseConfig(layers=specs).to_dict()
        settings["quantization_config"] = {k: v for k, v in fields.items() if v is not None}
    write_folder(Path(path), settings, tensors)
    return report


def _layers(
    mg: MaseGraph, empty: Any, report: ExportReport
) -> tuple[dict[str, Any], dict[str, Tensor], bool]:
    """Return the specs of compressed layers, all tensors, and whether none may be shared."""
    specs: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    modules, weights = dict(empty.named_modules()), weights_of(mg)
    for path, module in mg.model.named_modules():
        if isinstance(module, LoRALinear):
            raise ExportError(
                f"to_huggingface: module '{path}' has an adapter. Save it with "
                "save_lora_adapter_interface_pass, or run fuse_lora_weights_transform_pass."
            )
        layer = compact(module)
        spec = spec_of(layer)
        if spec is None or path not in modules:
            continue
        specs[path] = spec
        own = {f"{path}.{k}": v for k, v in layer.state_dict().items()}
        tensors |= own
        size = sum(t.nbytes for t in own.values())
        report.records.append(
            _record(f"{path}.weight", weights[f"{path}.weight"], type(layer).__name__, size)
        )
    shared = {name for pair in tied_names(empty).items() for name in pair}
    values = {name: weight.values for name, weight in weights.items()}
    is_untied = any(owner_of(n) in specs for n in shared) or differ(empty, values)
    sources, notes = names_to_write(empty, weights, is_untied=is_untied)
    report.dropped += notes
    state = empty.state_dict()
    for name, source in sources.items():
        if owner_of(name) in specs:
            continue
        tensors[name] = plain = as_in(empty, name, weights[source])
        if plain.shape != state[name].shape and plain.dim() == 2:
            specs[owner_of(name)] = {"kind": "resized", "shape": list(plain.shape)}
        written = str(plain.dtype).removeprefix("torch.")
        report.records.append(_record(name, Weight(plain), written, plain.nbytes))
    return specs, tensors, is_untied


def owner_of(name: str) -> str:
    """Return the path of the module that has the tensor `name`."""
    return name.rpartition(".")[0]


def _record(name: str, weight: Weight, kind: str, size: int) -> TensorRecord:
    return TensorRecord(name, name, weight.text, kind, weight.values.numel(), size, True)


SIZES = {
    "intermediate_size": r".*\.mlp\.(gate_proj|up_proj)",
    "num_attention_heads": r".*\.self_attn\.q_proj",
    "num_key_value_heads": r".*\.self_attn\.(k_proj|v_proj)",
}
"""Config keys for the rows of layers, and the paths of these layers; heads have head_dim rows."""


def _plain_sizes(specs: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the config keys for layers that all shrank alike; None if the config has none."""
    if not specs or any(spec["kind"] != "resized" for spec in specs.values()):
        return None
    sizes: dict[str, int] = {}
    head = settings.get("head_dim") or 1
    for key, pattern in SIZES.items():
        rows = [s["shape"][0] for p, s in specs.items() if re.fullmatch(pattern, p)]
        per_layer = pattern.count("|") + 1
        unit = 1 if key == "intermediate_size" else head
        if not rows:
            continue
        complete = len(rows) == per_layer * settings.get("num_hidden_layers", 0)
        if key not in settings or len(set(rows)) > 1 or not complete or rows[0] % unit:
            return None
        sizes[key] = rows[0] // unit
    heads = sizes.get("num_attention_heads", settings.get("num_attention_heads", 1))
    groups = sizes.get("num_key_value_heads", settings.get("num_key_value_heads", 1))
    return sizes if sizes and heads % max(groups, 1) == 0 else None
