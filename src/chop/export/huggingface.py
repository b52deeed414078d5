"""Compressed models as folders of transformers, and a quantizer by which it loads them.

Importing this module tells transformers of the method "mase": from then on
`AutoModel….from_pretrained(folder)` restores what `to_huggingface` wrote, and
`from_pretrained(name, quantization_config=MaseConfig(…))` compresses each weight as it is read.
"""

from __future__ import annotations

import re
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
from chop.export.folders import (
    config_of,
    differ,
    empty_model,
    names_to_write,
    tied_names,
    write_folder,
)
from chop.export.hf_layers import compact, compressed, make_layer, spec_of
from chop.export.mapped_pages import give_back
from chop.export.report import ExportReport, TensorRecord
from chop.export.weights import Weight, as_in, weights_of
from chop.files import shown
from chop.ir.graph import MaseGraph
from chop.nn.modules.lora import LoRALinear
from chop.nn.quantized.layer import layer_class
from chop.nn.quantizers.formats import find_format
from chop.nn.quantizers.operands import plain_names

METHOD = "mase"
SCHEMA = 1
GRAPH = an(MaseGraph, "a MaseGraph")


@register_quantization_config(METHOD)
class MaseConfig(QuantizationConfigMixin):
    """How transformers compresses a model as it loads it.

    `config` is the config of a number format, as quantised layers take it; `weights` alone: with
    `{"name": "mxint", "weight_width": 4, "data_in_width": "NA", "bias_width": "NA"}` inputs stay
    floats. `modules_to_not_convert` are layers to leave, by name or by the end of it. `layers` is
    what a folder says of a model that is compressed already.
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
            _check_format(config)
        self.config = None if config is None else dict(config)
        self.modules_to_not_convert = list(modules_to_not_convert or ["lm_head"])
        self.layers = dict(layers or {})
        self.schema = schema


def _check_format(config: Mapping[str, Any]) -> None:
    name = config.get("name")
    if not isinstance(name, str):
        raise ExportError("quantization_config.config: key 'name' is missing: it names the format.")
    form = find_format(name, "quantization_config.config.name")
    layer_class(nn.Linear, form).parse(config, "quantization_config.config")


@register_quantizer(METHOD)
class MaseQuantizer(HfQuantizer):
    """Makes layers on codes before weights are read, or each from its weight as that is read."""

    requires_calibration = False
    quantization_config: MaseConfig

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        """Nothing but this package is needed."""

    def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
        """Whether this weight is to be compressed."""
        told = self.quantization_config
        path, _, leaf = param_name.rpartition(".")
        if self.pre_quantized or told.config is None or leaf != "weight":
            return False
        skipped = any(path == s or path.endswith(f".{s}") for s in told.modules_to_not_convert)
        return not skipped and type(model.get_submodule(path)) is nn.Linear

    def get_quantize_ops(self) -> Any:
        """What becomes of a weight that is read."""
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
        _untie(model, self.quantization_config.layers)

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> None:
        if not self.pre_quantized:
            self.quantization_config.layers = layer_specs(model)
            self.quantization_config.config = None

    @property
    def is_trainable(self) -> bool:
        """Codes do not train."""
        return False

    def is_serializable(self, *args: Any, **kwargs: Any) -> bool:
        """`save_pretrained` works."""
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
        """Put a compressed layer in the place of the one whose weight was read."""
        assert full_layer_name is not None, "a weight has a name"
        (value,) = input_dict.values()
        weight = value[0] if isinstance(value, list) else value
        path = full_layer_name.rpartition(".")[0]
        config = self.quantizer.quantization_config.config
        assert config is not None, "asked for"
        _put(model, path, compressed(model.get_submodule(path), weight, config))
        give_back(weight)
        if missing_keys is not None:
            missing_keys.discard(full_layer_name)
        return {}


def _put(model: nn.Module, path: str, layer: nn.Module) -> None:
    owner, _, leaf = path.rpartition(".")
    layer.train(model.training)
    layer._is_hf_initialized = True  # type: ignore[assignment]
    setattr(model.get_submodule(owner), leaf, layer)


def _untie(model: Any, layers: Mapping[str, Any]) -> None:
    """Tell transformers that a layer on codes shares no weight, whatever the class says."""
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    own = {k: v for k, v in tied.items() if {owner_of(k), owner_of(v)}.isdisjoint(layers)}
    if len(own) != len(tied):
        model.all_tied_weights_keys = own


def layer_specs(model: nn.Module) -> dict[str, Any]:
    """The layers of a model that are not torch's, as data."""
    specs = ((path, spec_of(module)) for path, module in model.named_modules())
    return {path: spec for path, spec in specs if spec is not None}


@takes(ExportError, mg=GRAPH, path=NEW_FOLDER)
def to_huggingface(mg: MaseGraph, path: str | Path) -> ExportReport:
    """Write a compressed model of transformers as a folder that `from_pretrained` loads.

    Layers in formats of at most 8 bits are stored as codes, packed layers as their bytes; layers
    that structured pruning made smaller have their own sizes. Where nothing but sizes changed and
    the config can say them, or nothing did, the folder is a plain one, which loads without this
    package. Functions that round their operands, and adapters, have no place in such a folder.
    """
    config = config_of(mg, "to_huggingface")
    empty = empty_model(mg, config, "to_huggingface")
    _refuse_functions(mg)
    report = ExportReport("huggingface", Path(path))
    told = {**config.to_dict(), "architectures": [type(mg.model).__name__]}
    specs, tensors, is_untied = _layers(mg, empty, report)
    if is_untied:
        told["tie_word_embeddings"] = False  # codes and floats share no parameter
    smaller = _plain_sizes(specs, told)
    if smaller is not None:
        told, specs = {**told, **smaller}, {}
    dtypes = {t.dtype for t in tensors.values() if t.is_floating_point()}
    told["dtype"] = "float32" if torch.float32 in dtypes else config.to_dict().get("dtype")
    if specs:
        settings = MaseConfig(layers=specs).to_dict()
        told["quantization_config"] = {k: v for k, v in settings.items() if v is not None}
    write_folder(Path(path), told, tensors)
    return report


def _refuse_functions(mg: MaseGraph) -> None:
    for node in mg.nodes:
        target = getattr(node.target, "__module__", "")
        if node.op == "call_function" and target == "chop.nn.quantized.functional":
            raise ExportError(
                f"to_huggingface: node '{node.name}' rounds the operands of a function; a folder "
                "of transformers has layers alone. Use MaseGraph.export."
            )


def _layers(
    mg: MaseGraph, empty: Any, report: ExportReport
) -> tuple[dict[str, Any], dict[str, Tensor], bool]:
    """The layers that are not the model's own, all tensors, and whether none may be shared."""
    specs: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    wanted, weights = dict(empty.named_modules()), weights_of(mg)
    for path, module in mg.model.named_modules():
        if isinstance(module, LoRALinear):
            raise ExportError(
                f"to_huggingface: module '{path}' has an adapter. Save it with "
                "save_lora_adapter_interface_pass, or run fuse_lora_weights_transform_pass."
            )
        made = compact(module)
        spec = spec_of(made)
        if spec is None or path not in wanted:
            continue
        specs[path] = spec
        own = {f"{path}.{k}": v for k, v in made.state_dict().items()}
        tensors |= own
        report.records.append(_record(f"{path}.weight", made, own, weights))
    shared = {name for pair in tied_names(empty).items() for name in pair}
    values = {name: weight.values for name, weight in weights.items()}
    is_untied = any(owner_of(n) in specs for n in shared) or differ(empty, values)
    names = names_to_write(empty, weights, is_untied=is_untied)
    report.dropped += names.unused
    state = empty.state_dict()
    for name, source in names.sources.items():
        if owner_of(name) not in specs:
            found = as_in(empty, name, weights[source])
            tensors |= _plain(name, state[name], found, specs, report)
    return specs, tensors, is_untied


def owner_of(name: str) -> str:
    """The path of the module that has the tensor `name`."""
    return name.rpartition(".")[0]


def _plain(
    name: str, like: Tensor, values: Tensor, specs: dict[str, Any], report: ExportReport
) -> dict[str, Tensor]:
    """A tensor as it is; one of another size makes its layer one of that size."""
    if values.shape != like.shape and values.dim() == 2:
        specs[owner_of(name)] = {"kind": "resized", "shape": list(values.shape)}
    written = str(values.dtype).removeprefix("torch.")
    report.records.append(
        TensorRecord(name, name, "float", written, values.numel(), values.nbytes, True)
    )
    return {name: values}


def _record(
    name: str, layer: nn.Module, own: Mapping[str, Tensor], weights: Mapping[str, Weight]
) -> TensorRecord:
    weight = weights[name]
    size = sum(t.nbytes for t in own.values())
    kind = type(layer).__name__
    return TensorRecord(name, name, weight.text, kind, weight.values.numel(), size, True)


SIZES = {
    "intermediate_size": r".*\.mlp\.(gate_proj|up_proj)",
    "num_attention_heads": r".*\.self_attn\.q_proj",
    "num_key_value_heads": r".*\.self_attn\.(k_proj|v_proj)",
}
"""Keys of configs that say how many rows layers have, and which layers; heads count by head_dim."""


def _plain_sizes(specs: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, int] | None:
    """The config's keys for layers that are smaller everywhere alike; None where it has none."""
    if not specs or any(spec["kind"] != "resized" for spec in specs.values()):
        return None
    found: dict[str, int] = {}
    head = told.get("head_dim") or 1
    for key, pattern in SIZES.items():
        rows = [s["shape"][0] for p, s in specs.items() if re.fullmatch(pattern, p)]
        per_layer = len(re.findall(r"\|", pattern)) + 1
        unit = 1 if key == "intermediate_size" else head
        if not rows:
            continue
        complete = len(rows) == per_layer * told.get("num_hidden_layers", 0)
        if key not in told or len(set(rows)) > 1 or not complete or rows[0] % unit:
            return None
        found[key] = rows[0] // unit
    heads = found.get("num_attention_heads", told.get("num_attention_heads", 1))
    groups = found.get("num_key_value_heads", told.get("num_key_value_heads", 1))
    return found if found and heads % max(groups, 1) == 0 else None
