"""The configuration of `mase generate`; as those of other commands, it imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from chop.cli.configs import ModelOptions, OutputOptions
from chop.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class GenerateConfig(ModelOptions, OutputOptions):
    """What to write.

    `prompt`: the text to go on from. `tokenizer`: hub name or folder; by default the model's own.
    `max_new_tokens`: write so many at most. `sample`: draw each token by its probability; otherwise
    the most probable is taken. `temperature`: above 1 evens probabilities out, below 1 sharpens
    them. `top_k`: draw among so many of the most probable. `top_p`: draw among the fewest that hold
    this share. `beams`: keep so many texts and give the most probable. `cache`: number format of
    keys and values: float, mxint8, mxfp4/16, fixed8.4 …; int8 and int4 have a scale for each row.
    `cache_layers`: formats of single layers, as
    0=mxint8,5=float. `dtype`: what a Hugging Face model computes in; by default its own type, and
    float32 on a CPU. `pack`: put the weights into this packed format first: mxint8,
    mxint4/16, mxfp8, mxfp4, int4, int8 … `device`: cpu or cuda.
    `compile`: run a static cache through torch.compile. `stream`: show each token as it comes.
    `repeat`: generate so often and tell the fastest, after what only the first run does.
    """

    prompt: str | None = None
    tokenizer: str | None = None
    max_new_tokens: int = 64
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    beams: int = 1
    cache: str = "float"
    cache_layers: tuple[str, ...] = ()
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    pack: str | None = field(
        default=None, metadata={"check": "chop.kernels.formats:check_pack_format"}
    )
    device: str = "cpu"
    compile: bool = False
    stream: bool = True
    repeat: int = 1
    out: Path = Path("out/generate")

    def __post_init__(self) -> None:
        if self.prompt is None:
            raise ConfigError('no prompt given: --prompt "Once upon a time".')
        if not self.sample and (self.temperature, self.top_k, self.top_p) != (1.0, 50, 1.0):
            raise ConfigError("temperature, top_k and top_p are for drawing: give --sample too.")
        packs = self.cache != "float" or bool(self.cache_layers)
        if self.compile and packs:
            raise ConfigError("compile runs a static cache of floats: it excludes cache.")
