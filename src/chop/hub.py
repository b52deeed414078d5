"""Lookup of a named model or dataset: a local folder, the hub's cache, or the hub.

A machine without a network gets one error that names the two ways to use a local copy.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError

from chop.arguments import PATH, check
from chop.errors import HubError

Kind = Literal["model", "dataset"]
VARIABLES: dict[Kind, str] = {"model": "MASE_MODELS", "dataset": "MASE_DATA"}
"""Kind -> environment variable with a folder of local copies."""
TIMEOUT = 10.0
"""Seconds in which the hub must answer whether it has a model or dataset."""


@dataclass(frozen=True)
class Place:
    """Place of a model or dataset: `name` is a folder or a hub name; `is_local` forbids the hub."""

    name: str
    is_local: bool

    @property
    def is_folder(self) -> bool:
        """True if `name` is a folder."""
        return Path(self.name).is_dir()


def locate(name: str | Path, kind: Kind) -> Place:
    """Locate `name`: a folder, one in $MASE_MODELS or $MASE_DATA, or on the hub, in this order."""
    check(f"{kind}", PATH, name, HubError)
    folder = local_folder(name, kind)
    if folder is not None:
        return Place(str(folder), is_local=True)
    if Path(name).is_absolute():
        raise HubError(f"{kind} '{name}': no such folder.")
    api = HfApi()
    try:  # one request, without retries
        (api.model_info if kind == "model" else api.dataset_info)(str(name), timeout=TIMEOUT)
    except HfHubHTTPError as error:
        reason = str(error).strip().splitlines()[0]
        raise HubError(f"{kind} '{name}': the hub does not give it ({reason}).") from error
    except Exception as error:  # the hub's HTTP library differs between releases
        if (Path(constants.HF_HUB_CACHE) / f"{kind}s--{str(name).replace('/', '--')}").is_dir():
            return Place(str(name), is_local=True)
        raise HubError(
            f"{kind} '{name}': no local copy is known and the hub cannot be reached "
            f"({type(error).__name__}). Give the path of a folder in place of the name, or set "
            f"{VARIABLES[kind]} to a folder that holds '{Path(name).name}'."
        ) from error
    return Place(str(name), is_local=False)


def local_folder(name: str | Path, kind: Kind) -> Path | None:
    """Return the folder `name`, here or in $MASE_MODELS or $MASE_DATA, or None."""
    copies = os.environ.get(VARIABLES[kind])
    short = Path(name).name  # "prajjwal1/bert-tiny" may be stored as "bert-tiny"
    candidates = [Path(name), *(Path(copies) / each for each in (name, short) if copies)]
    return next((path for path in candidates if path.is_dir()), None)
