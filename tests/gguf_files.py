"""Small GGUF files of every family that is read, whole and forged, written by the specification.

Nothing here uses the writer of the package: types, sizes and names are those of the format's pages.
"""

from __future__ import annotations

import functools
import os
import random
import struct
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from file_kinds import FAITHFUL, WRONG_SHAPES, Forged, Kind
from mutations import damaged

from chop.export import from_gguf

SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING, ARRAY, UINT32, FLOAT32 = 8, 9, 4, 6
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34), 30: (1, 2), 39: (32, 17)}
"""Number of a type -> elements and bytes of a block: F32, F16, Q4_0, Q4_1, Q8_0, BF16, MXFP4."""
F32, F16 = 0, 1
FAMILIES = ("llama", "qwen2", "qwen3", "gpt2")
Shape = tuple[int, ...]


@dataclass
class Tensor:
    """A tensor as the file describes it, and its bytes."""

    name: str
    shape: Shape
    kind: int
    data: bytes
    offset: int | None = None


@dataclass
class Content:
    """A file: its metadata as (key, type, value), its tensors, and counts that may be false."""

    metadata: list[tuple[str, int, Any]]
    tensors: list[Tensor]
    version: int = 3
    extra: dict[str, int] = field(default_factory=dict)

    def value(self, key: str) -> Any:
        """Return the value under `key` behind any architecture; None if there is none."""
        return next((v for k, _, v in self.metadata if k.partition(".")[2] == key), None)

    def encoded(self) -> bytes:
        """Return the bytes of the file."""
        align = next((v for k, _, v in self.metadata if k == "general.alignment"), 32)
        align = align if isinstance(align, int) and 0 < align <= 1 << 12 else 32
        tensors = len(self.tensors) + self.extra.get("tensors", 0)
        pairs = len(self.metadata) + self.extra.get("pairs", 0)
        head = b"GGUF" + struct.pack("<IQQ", self.version, tensors % 2**64, pairs % 2**64)
        for key, kind, value in self.metadata:
            head += text(key) + struct.pack("<I", kind) + plain(kind, value)
        body = b""
        for each in self.tensors:
            offset = len(body) if each.offset is None else each.offset
            head += text(each.name) + struct.pack("<I", len(each.shape))
            head += b"".join(struct.pack("<Q", d % 2**64) for d in each.shape[::-1])
            head += struct.pack("<IQ", each.kind, offset % 2**64)
            body += each.data + b"\0" * (-len(each.data) % align)
        return head + b"\0" * (-len(head) % align) + body


def text(value: str) -> bytes:
    """Return a string as the file holds it."""
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def plain(kind: int, value: Any) -> bytes:
    """Return a value as the file holds it; an array is (type, items)."""
    if kind == STRING:
        return text(value)
    if kind == ARRAY:
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(plain(inner, v) for v in items)
    return struct.pack(f"<{SCALARS[kind]}", value) if kind in SCALARS else b"\0" * 8


def shapes_of(family: str, size: dict[str, int]) -> dict[str, Shape]:
    """Return the tensors that a model of `family` has, and their shapes (outputs first)."""
    e, f, v = size["embedding_length"], size["feed_forward_length"], size["vocab"]
    h, k, d = size["attention.head_count"], size["attention.head_count_kv"], size["head"]
    found: dict[str, Shape] = {"token_embd.weight": (v, e), "output_norm.weight": (e,)}
    if family == "gpt2":
        found |= {"position_embd.weight": (size["context_length"], e), "output_norm.bias": (e,)}
    elif size["untied"]:
        found["output.weight"] = (v, e)
    matrices = {"attn_q": (h * d, e), "attn_k": (k * d, e), "attn_v": (k * d, e)}
    matrices |= {
        "attn_output": (e, h * d),
        "ffn_gate": (f, e),
        "ffn_up": (f, e),
        "ffn_down": (e, f),
    }
    biased: tuple[str, ...] = ("attn_q", "attn_k", "attn_v") if family == "qwen2" else ()
    if family == "gpt2":
        matrices = {"attn_qkv": (3 * e, e), "attn_output": (e, e)}
        matrices |= {"ffn_up": (f, e), "ffn_down": (e, f)}
        biased = tuple(matrices)
    for layer in range(size["block_count"]):
        for name in ("attn_norm", "ffn_norm"):
            found[f"blk.{layer}.{name}.weight"] = (e,)
            if family == "gpt2":
                found[f"blk.{layer}.{name}.bias"] = (e,)
        for name, shape in matrices.items():
            found[f"blk.{layer}.{name}.weight"] = shape
            if name in biased:
                found[f"blk.{layer}.{name}.bias"] = shape[:1]
        for name in ("attn_q_norm", "attn_k_norm") if family == "qwen3" else ():
            found[f"blk.{layer}.{name}.weight"] = (d,)
    return found


def valid(rng: random.Random, family: str | None = None) -> Content:
    """Return a file of a small model with types and sizes drawn."""
    family = family or rng.choice(FAMILIES)
    heads = rng.choice((1, 2))
    size = {
        "block_count": 1,
        "context_length": rng.choice((16, 64)),
        "embedding_length": 32,
        "feed_forward_length": rng.choice((32, 64)),
        "attention.head_count": heads,
        "attention.head_count_kv": 1,
        "head": 32 // heads,
        "vocab": rng.choice((32, 48)),
        "untied": rng.randrange(2),
    }
    numbers = {k: v for k, v in size.items() if k not in ("head", "vocab", "untied")}
    if family == "gpt2":
        del numbers["attention.head_count_kv"]
    else:
        numbers |= {"attention.key_length": size["head"], "rope.dimension_count": size["head"]}
    eps = "layer_norm_epsilon" if family == "gpt2" else "layer_norm_rms_epsilon"
    metadata: list[tuple[str, int, Any]] = [("general.architecture", STRING, family)]
    metadata += [(f"{family}.{k}", UINT32, v) for k, v in numbers.items()]
    metadata += [
        (f"{family}.vocab_size", UINT32, size["vocab"]),
        (f"{family}.attention.{eps}", FLOAT32, 1e-5),
        ("tokenizer.ggml.bos_token_id", UINT32, 0),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, ["a", "b"])),
        ("tokenizer.ggml.token_type", ARRAY, (5, [1, 1])),
    ]
    tensors = [tensor(rng, name, shape) for name, shape in shapes_of(family, size).items()]
    return Content(metadata, tensors)


def tensor(rng: random.Random, name: str, shape: Shape) -> Tensor:
    """Return a tensor of a drawn type with drawn values."""
    kind = rng.choice(list(BLOCKS)) if len(shape) == 2 and shape[-1] % 32 == 0 else F32
    block, nbytes = BLOCKS[kind]
    count = int(np.prod(shape))
    draw = np.random.default_rng(rng.randrange(1 << 30))
    values = draw.standard_normal(count).astype(np.float32)
    if kind in (F32, F16):
        return Tensor(name, shape, kind, values.astype((np.float32, np.float16)[kind]).tobytes())
    if kind == 30:
        return Tensor(name, shape, kind, (values.view(np.uint32) >> 16).astype(np.uint16).tobytes())
    codes = draw.integers(0, 256, (count // block, nbytes)).astype(np.uint8)
    scale = np.full(count // block, 0.0625, np.float16).view(np.uint8).reshape(-1, 2)
    first = codes[:, :1] * 0 + 124 if kind == 39 else scale
    codes[:, : first.shape[1]] = first
    if kind == 3:
        codes[:, 2:4] = scale
    return Tensor(name, shape, kind, codes.tobytes())


# -- forgeries -------------------------------------------------------------------------------

NAMES = (
    "",
    "x",
    "\x1b[31mred\x1b[0m",
    "blk.0.attn_q.weight",
    "blk.9.attn_q.weight",
    "../x",
    "a\nb",
)
NAMES += ("blk.0.attn_q.bias", "output.weight", "rope_freqs.weight", "blk..weight", "." * 300)
NUMBERS = (0, 1, 2, 3, 5, 7, 31, 33, 64, 95, 2**15, 2**31 - 1, 2**31, 2**32 - 1)
FLOATS = (0.0, -1.0, float("nan"), float("inf"), 1e-38, 1e38, 0.5)


def any_value(rng: random.Random) -> tuple[int, Any]:
    """Return a type and a value of it."""
    kind = rng.choice((*SCALARS, STRING, ARRAY, UINT32, UINT32, 13))
    if kind == STRING:
        return kind, rng.choice((*NAMES, "linear", "yarn", "none", "llama", "gpt2", "8"))
    if kind == ARRAY:
        nested = (ARRAY, [(UINT32, [1])] * 2)
        return kind, rng.choice(((UINT32, [1, 2]), (STRING, ["a"]), (6, []), nested, (13, [])))
    if kind in (6, 12):
        return kind, rng.choice(FLOATS)
    bits = {0: 8, 1: 7, 2: 16, 3: 15, 4: 32, 5: 31, 7: 1, 10: 64, 11: 63}.get(kind, 8)
    number = rng.choice(NUMBERS) % 2**bits
    return kind, -number if kind in (1, 3, 5, 11) and rng.random() < 0.5 else number


def change_metadata(content: Content, rng: random.Random) -> None:
    """Change, drop, repeat or rename a pair, or add one."""
    place = rng.randrange(len(content.metadata))
    key, kind, value = content.metadata[place]
    choice = rng.randrange(8)
    if choice <= 3:
        content.metadata[place] = (key, *any_value(rng))
    elif choice == 4:
        del content.metadata[place]
    elif choice == 5:
        content.metadata.append((key, kind, value))
    elif choice == 6 and kind == UINT32:
        content.metadata[place] = key, kind, max(0, value + rng.choice((-1, 1, 16, 95)))
    else:
        family = content.metadata[0][2]
        more = ("rope.scaling.type", "rope.scaling.factor", "rope.freq_base", "x", "vocab_size")
        more += ("attention.value_length", "rope.dimension_count", "attention.key_length")
        name = rng.choice((*(f"{family}.{m}" for m in more), "general.alignment", *NAMES))
        pair = (UINT32, rng.choice((7, 8, 24, 0, 64))) if "align" in name else any_value(rng)
        content.metadata.append((name, *pair))


def change_tensor(content: Content, rng: random.Random) -> None:
    """Change the shape, type, place, name or values of a tensor, drop or repeat it."""
    if not content.tensors:
        return
    each, other = rng.choice(content.tensors), rng.choice(content.tensors)
    choice = rng.randrange(11)
    sizes = list(each.shape) or [1]
    place = rng.randrange(len(sizes))
    if choice == 0:
        sizes[place] = sizes[place] + rng.choice((-1, 1, 32))
        each.shape = tuple(sizes)
        each.data = (each.data * 3)[: tensor(rng, "", (32, 32)).data.__len__() * 4]
    elif choice == 1:
        each.shape = tuple(sizes[::-1]) if rng.random() < 0.5 else (1, *sizes)
    elif choice == 2:
        sizes[place] = rng.choice((0, 2**31, 2**62, 2**63, -1))
        each.shape = rng.choice((tuple(sizes), (), (1,) * 5))
    elif choice == 3:
        each.kind = rng.choice((*BLOCKS, 4, 12, 99, 2**31))
    elif choice == 4:
        each.offset = rng.choice((0, 1, 4, 32, 2**40, 2**63, 2**64 - 32))
    elif choice == 5:
        content.tensors = [Tensor(t.name, t.shape, t.kind, t.data, 0) for t in content.tensors]
    elif choice == 6:
        each.name = rng.choice((*NAMES, other.name))
    elif choice == 7:
        content.tensors.remove(each)
    elif choice == 8:
        content.tensors.append(other)
    elif choice == 9:
        bad = rng.choice((b"\x00\x7e", b"\x00\x7c", b"\xff\xff\xff\xff", b"\x00\x00\xc0\x7f"))
        start = rng.randrange(0, len(each.data), 2)
        each.data = (each.data[:start] + bad + each.data[start:])[: len(each.data)]
    else:
        each.data = each.data[: rng.randrange(len(each.data))]


def change_counts(content: Content, rng: random.Random) -> None:
    """Change the version or a count of the header."""
    if rng.random() < 0.3:
        content.version = rng.choice((0, 1, 2, 4, 2**31))
    else:
        key = rng.choice(("tensors", "pairs"))
        content.extra[key] = rng.choice((-1, 1, 100, 2**31, 2**62, -(2**63)))


def judged(folder: Path, rng: random.Random) -> str:
    """Write a forged file, read it, and compare what was read with what the file describes."""
    content = valid(rng)
    changes = (change_metadata, change_tensor, change_metadata, change_tensor, change_counts)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        rng.choice(changes)(content, rng)
    data = content.encoded()
    (folder / "m.gguf").write_bytes(damaged(data, rng) if rng.random() < 0.1 else data)
    graph = from_gguf(folder / "m.gguf")
    if (folder / "m.gguf").read_bytes() != data:
        content = None  # damaged bytes: the shapes below are then those of the graph's config
    return FAITHFUL if is_faithful(graph.model, content) else WRONG_SHAPES


def is_faithful(model: Any, content: Content | None) -> bool:
    """Return whether shapes, sizes and floats of a model are those of the file."""
    config = model.config
    kind = config.model_type
    size = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": getattr(config, "n_inner", 0)
        or getattr(config, "intermediate_size", 0),
        "attention.head_count": config.num_attention_heads,
    }
    if content is not None and any(content.value(key) != number for key, number in size.items()):
        return False
    heads = size["attention.head_count"]
    size["attention.head_count_kv"] = getattr(config, "num_key_value_heads", heads)
    size["head"] = getattr(config, "head_dim", None) or config.hidden_size // heads
    size |= {"vocab": config.vocab_size, "untied": not config.tie_word_embeddings}
    wanted = sorted(_unordered(kind, shape) for shape in shapes_of(kind, size).values())
    found = dict(model.named_parameters())  # those that are shared once
    if config.tie_word_embeddings and len(found) > len(wanted):
        del found["lm_head.weight"]
    is_finite = all(bool(torch.isfinite(p).all()) for p in found.values())
    return is_finite and sorted(_unordered(kind, tuple(p.shape)) for p in found.values()) == wanted


def _unordered(family: str, shape: Shape) -> Shape:
    """Return a shape; of GPT-2, whose matrices a graph may hold either way, the sizes sorted."""
    return tuple(sorted(shape)) if family == "gpt2" else shape


# -- files forged by hand ------------------------------------------------------------------------


def with_metadata(*pairs: tuple[str, int, Any]) -> Content:
    """Return a file of a llama with other pairs in its metadata."""
    content = valid(random.Random(0), "llama")
    keys = {key for key, _, _ in pairs}
    content.metadata = [row for row in content.metadata if row[0] not in keys] + list(pairs)
    return content


def with_tensor(place: str, **changes: Any) -> Content:
    """Return a file of a llama of which one tensor is another."""
    content = valid(random.Random(0), "llama")
    for each in content.tensors:
        if each.name == place:
            vars(each).update(changes)
    return content


def with_scale(kind: int, *scale: int) -> Content:
    """Return a file with a block whose scale has these bytes."""
    block, nbytes = BLOCKS[kind]
    data = (bytes(scale) + bytes(nbytes - len(scale))) * 32
    return with_tensor("blk.0.attn_q.weight", kind=kind, data=data, shape=(32, block))


def shared() -> Content:
    """Return a file of 400 tensors of 64 MB on the same bytes."""
    content = valid(random.Random(0), "llama")
    content.tensors[0].data = bytes(1 << 20)
    content.tensors += [Tensor(f"t{i}", (1 << 18,), F32, b"", 0) for i in range(4000)]
    return content


HEADS, KV, Q = "llama.attention.head_count", "llama.attention.head_count_kv", "blk.0.attn_q.weight"
BY_HAND: dict[str, tuple[Any, str]] = {
    "tensors on the same bytes": (shared, "share bytes"),
    "alignment 7": (
        lambda: with_metadata(("general.alignment", UINT32, 7)),
        "general.alignment is 7",
    ),
    "alignment 24": (lambda: with_metadata(("general.alignment", UINT32, 24)), "powers of 2"),
    "an offset that is not aligned": (lambda: with_tensor(Q, offset=4), "no multiple of 32"),
    "a NaN scale of Q8_0": (lambda: with_scale(8, 0, 0x7E), "NaN or infinite"),
    "a NaN scale of Q4_0": (lambda: with_scale(2, 0, 0x7E), "NaN or infinite"),
    "an infinite scale of Q4_1": (lambda: with_scale(3, 0, 0x7C), "NaN or infinite"),
    "a NaN scale of MXFP4": (lambda: with_scale(39, 255), "NaN or infinite"),
    "no heads": (lambda: with_metadata((HEADS, UINT32, 0)), "is 0. Allowed: a positive number"),
    "heads below 0": (lambda: with_metadata((HEADS, 5, -2)), "is -2. Allowed: a positive number"),
    "heads that do not divide": (
        lambda: with_metadata((KV, UINT32, 7)),
        "is 7. Allowed: a divisor",
    ),
    "heads as text": (lambda: with_metadata((HEADS, STRING, "2")), "is '2'. Allowed: a positive"),
    "heads as an array": (
        lambda: with_metadata((HEADS, ARRAY, (UINT32, [2]))),
        "Allowed: a positive",
    ),
    "heads as a float": (
        lambda: with_metadata((HEADS, FLOAT32, 2.0)),
        "is 2.0. Allowed: a positive",
    ),
    "a key size as text": (
        lambda: with_metadata(("llama.attention.key_length", STRING, "x")),
        "is 'x'. Allowed: a positive number",
    ),
    "heads of odd size": (
        lambda: with_metadata(
            ("llama.attention.key_length", UINT32, 15), ("llama.rope.dimension_count", UINT32, 15)
        ),
        "heads of size 15. Allowed: even",
    ),
    "a part of a head that is rotated": (
        lambda: with_metadata(("llama.rope.dimension_count", UINT32, 8)),
        "rope.dimension_count is 8. Allowed: ",
    ),
    "another vocabulary": (
        lambda: with_metadata(("llama.vocab_size", UINT32, 9)),
        "vocab_size is 9",
    ),
    "a token outside the vocabulary": (
        lambda: with_metadata(("tokenizer.ggml.bos_token_id", UINT32, 4000)),
        "bos_token_id is 4000. Allowed: a token from 0",
    ),
    "a million layers": (
        lambda: with_metadata(("llama.block_count", UINT32, 1 << 20)),
        "1048576 layers",
    ),
    "a key twice": (
        lambda: Content([*valid(random.Random(0), "llama").metadata] * 2, []),
        "is there twice",
    ),
    "rope scaling as an array": (
        lambda: with_metadata(("llama.rope.scaling.type", ARRAY, (UINT32, [1, 2]))),
        "rope scaling .* Allowed: none, linear",
    ),
    "a bias of 31": (
        lambda: with_tensor("blk.0.attn_norm.weight", shape=(31,)),
        r"has shape \[31\], expected \[32\]",
    ),
    "a name with control characters": (
        lambda: with_tensor(Q, name="\x1b[31mred"),
        r"tensor '\\x1b\[31mred' has no place",
    ),
}


def forged_files() -> list[Forged]:
    """Return files that are wrong in one place, and one that is a hole."""

    def write(make: Any, folder: Path) -> None:
        (folder / "m.gguf").write_bytes(make().encoded())

    def write_hole(folder: Path) -> None:
        write(lambda: valid(random.Random(0)), folder)
        os.truncate(folder / "m.gguf", 1 << 36)

    rows = [
        Forged(f"gguf: {name}", functools.partial(write, make), _read, words)
        for name, (make, words) in BY_HAND.items()
    ]
    return [*rows, Forged("gguf: a hole", write_hole, _read, "without large holes")]


def _read(folder: Path) -> Any:
    return from_gguf(folder / "m.gguf")


def warm_up() -> None:
    """Read a valid file of each family."""
    with tempfile.TemporaryDirectory() as folder:
        for family in FAMILIES:
            Path(folder, "m.gguf").write_bytes(valid(random.Random(1), family).encoded())
            _read(Path(folder))


KINDS = {"GGUF": Kind(judged, 0.02)}
