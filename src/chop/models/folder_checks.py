"""Checks of Hugging Face folders before transformers loads them."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig

from chop.errors import ConfigError, HubError
from chop.files import read_json, shown
from chop.hub import Place
from chop.hub_config import check_config, refuse_remote_code
from chop.models.size_limits import SizeLimit, check_size

CONFIG, ADAPTER = "config.json", "adapter_config.json"
INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
DANGEROUS_OPTIONS = {
    "trust_remote_code": "it is an option of its own: --trust-remote-code",
    "weights_only": "weights are read without running anything",
    "use_kernels": "a kernel of the hub is a program",
    "allow_all_kernels": "a kernel of the hub is a program",
    "kernel_config": "a kernel of the hub is a program",
    "key_mapping": "names of weights are those of transformers",
    "code_revision": "code of the hub is not run",
    "gguf_file": "use `mase import`",
    "config": "give its keys",
    "state_dict": "weights come from the folder",
    "adapter_kwargs": "load adapters with load_lora_adapter_interface_pass",
}
"""Arguments of `from_pretrained` that are no model options, and why."""


def check_model_options(options: Mapping[str, Any]) -> None:
    """Raise ConfigError if options for a model change how files are trusted."""
    for name, reason in DANGEROUS_OPTIONS.items():
        if name in options:
            raise ConfigError(f"model_options.{name}: not allowed: {reason}.")
    check_config(options, "model_options", ConfigError)


@dataclass(frozen=True)
class CheckedPlace:
    """A folder or hub name whose config was checked."""

    place: Place
    trust_remote_code: bool
    weights: SizeLimit | None

    def check_size(self, build: Callable[[], Any], *, has_weights: bool = True) -> None:
        """Raise HubError if the model that `build` makes is larger than its weight files allow."""
        limit = self.weights if has_weights else None
        check_size(build, limit or SizeLimit.of_machine(), f"model '{self.place.name}'")


def checked(place: Place, *, trust_remote_code: bool) -> CheckedPlace:
    """Return a place whose config asks for nothing dangerous; raise HubError for others."""
    where = f"model '{place.name}': {CONFIG}"
    config = _read_config(place)
    check_config(config, where, HubError)
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        refuse_remote_code(config, where, HubError, trust_remote_code=trust_remote_code)
    weights = _weights_limit(Path(place.name), config) if place.is_folder else None
    return CheckedPlace(place, trust_remote_code, weights)


def _read_config(place: Place) -> dict[str, Any]:
    if not place.is_folder:
        return PretrainedConfig.get_config_dict(place.name, local_files_only=place.is_local)[0]
    folder = Path(place.name)
    if not (folder / CONFIG).is_file():
        raise HubError(f"model '{folder}': the folder has no {CONFIG}.")
    if (folder / ADAPTER).is_file():
        raise HubError(
            f"model '{folder}': it holds an adapter ({ADAPTER}) beside the model. Move it to a "
            "folder of its own and load it with load_lora_adapter_interface_pass."
        )
    config = read_json(folder / CONFIG, HubError)
    if not isinstance(config, dict):
        raise HubError(f"{folder / CONFIG}: expected a mapping, got {shown(config)}.")
    return config


def _weights_limit(folder: Path, config: Mapping[str, Any]) -> SizeLimit:
    _check_indices(folder)
    safe, pickled = sorted(folder.glob("*.safetensors")), sorted(folder.glob("*.bin"))
    bytes = sum(file.stat().st_size for file in (*safe, *pickled))
    tensors = sum(_count_tensors(file) for file in safe)
    tensors += sum(_count_records(file) for file in pickled if not safe)
    is_packed = config.get("quantization_config") is not None
    return SizeLimit.of_weights(bytes, tensors, is_packed=is_packed)


def _check_indices(folder: Path) -> None:
    """Raise HubError if an index of weights names files outside the folder."""
    for name in INDICES:
        file = folder / name
        if not file.is_file():
            continue
        index = read_json(file, HubError)
        files = index.get("weight_map") if isinstance(index, dict) else None
        values = files.values() if isinstance(files, dict) else [None]
        wrong = next((f for f in values if not isinstance(f, str) or Path(f).name != f), None)
        if wrong is not None or not isinstance(files, dict):
            raise HubError(
                f"{file}: weight_map: expected names of files of the folder, got {shown(wrong)}."
            )


def _count_tensors(file: Path) -> int:
    """Return the number of tensors of a safetensors file, by its header."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > file.stat().st_size:
            raise HubError(f"{file}: damaged safetensors file (a header of {length} bytes).")
        try:
            return len(json.loads(opened.read(length)))
        except (ValueError, RecursionError, TypeError) as error:
            raise HubError(f"{file}: damaged safetensors file ({error}).") from error


def _count_records(file: Path) -> int:
    """Return the number of records of a file of torch; raise HubError if any is compressed."""
    try:
        with zipfile.ZipFile(file) as opened:
            records = opened.infolist()
    except (zipfile.BadZipFile, OSError, NotImplementedError) as error:
        raise HubError(
            f"{file}: not a file of torch.save since torch 1.6 ({error}). Save the weights as "
            "safetensors."
        ) from error
    if any(record.compress_type != zipfile.ZIP_STORED for record in records):
        raise HubError(f"{file}: has compressed records, which torch does not write.")
    if sum(record.file_size for record in records) > file.stat().st_size:
        raise HubError(f"{file}: its records are larger than the file.")
    return len(records)
