"""How fast and how small packed weights are, as ratios to torch's own layers in the same run.

    python bench/kernels.py                        # every section of the CPU
    python bench/kernels.py --device cuda          # checks the kernels, then every section
    python bench/kernels.py --device cuda --section linear --section sweep

Sections: unpack (against a copy), linear and int8 (against torch's linear), attention (fused
against written out), memory (what loading a model adds to the process), end_to_end (BERT-base,
float to packed and fused), sweep, cuts, cuts4 and tiles (configurations of the GPU kernels).
Every program is first compared with the reference in float64 on the tensors that are timed.
Programs of a section alternate, so that a busy moment hits all of them. Results go to
bench/results/kernels_<device>.json after each section. A section that fails is reported and the
others run.

Add a section: a function from the device to records, and its row in `SECTIONS`.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import itertools
import math
import resource
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measuring.checked import Timed, Times, compare
from measuring.progress import Stopwatch
from measuring.record import save_section
from torch import Tensor

from chop.kernels import (
    GROUP_SIZES,
    PACKED_FORMATS,
    PackedTensor,
    QLinearPacked,
    pack,
    packed_linear,
    reference,
    scaled_dot_product_attention,
    unpack,
)

Records = list[dict[str, Any]]
Programs = Mapping[str, Timed]
SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336))
"""Rows and columns of the weight: the square one, and both orders of the wide one."""
TARGETS = {"cpu": {1: 0.5}, "cuda": {1: 0.65, 4: 0.65, 16: 0.65, 256: 1.1}}
"""Time of the packed linear over that of torch's, by batch."""
TARGETS_4_BITS = {1: 0.38, 4: 0.38, 16: 0.42, 64: 1.0, 256: 1.1}
"""The same on the GPU for formats of 4 bits."""
SQUARE_TARGETS = {"cpu": {1: 0.5}, "cuda": {1: 1.0, 4: 1.0, 16: 1.0, 256: 1.1}}
"""The same at 4096 x 4096, where starting a kernel counts for more."""
COLD_BYTES = 600 << 20
"""Weights that are cycled through, so that none is in a cache when its turn comes."""
SHORT_CLOCK = {"cpu": "wall", "cuda": "graph"}
"""Clock of a short program by device: on a GPU without launch gaps."""
ERRORS = {torch.float32: 1e-5, torch.bfloat16: 2**-8}
"""Relative error of a product or of attention by the type of its result, against float64."""
ERROR_8_BITS = 0.02
"""The same where activations are rounded to 8 bits with one scale per row."""
ERRORS_OF_BERT = {"float": 1e-4, "fused": 1e-4, "packed": 0.1, "fused and packed": 0.1}
"""The same for the logits of BERT-base: MXINT8 weights over 12 layers."""
CONFIG_NAMES = ("block_m", "block_n", "block_k", "warps", "stages", "per_sm")


# -- references ----------------------------------------------------------------------------------


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Return x times the transposed weight in float64: the reference of every linear layer."""
    return F.linear(x.double(), weight.double())


def plain(packed: PackedTensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the weights by their definition, not by a kernel."""
    parts = (packed.codes.cpu(), packed.scales.cpu())
    weight = reference.unpack(*parts, packed.format, packed.group_size, packed.columns, dtype)
    return weight.to(packed.codes.device)


def copies(make: Callable[[], Any], size: int) -> list[Any]:
    """As many fresh ones as a cache does not hold."""
    return [make() for _ in range(max(2, math.ceil(COLD_BYTES / size)))]


# -- unpack ----------------------------------------------------------------------------------


def bench_unpack(device: str) -> Records:
    """Bandwidth of unpacking to bfloat16, over that of a copy that moves as many bytes."""
    records = []
    rows, columns = (16384, 16384) if device == "cuda" else (2048, 4096)
    weight = torch.randn(rows, columns, device=device)
    for format in PACKED_FORMATS:
        packed = pack(weight, format)
        moved = packed.nbytes + 2 * weight.numel()
        source = torch.ones(moved // 2, dtype=torch.uint8, device=device)
        programs = {
            "copy": Timed(source.clone, source),
            "unpack": Timed(
                lambda packed=packed: unpack(packed, torch.bfloat16), plain(packed, torch.bfloat16)
            ),
        }
        times = compare(programs, rounds=9, clock=SHORT_CLOCK[device])
        best = {name: moved / each.median for name, each in times.items()}
        records.append(
            {
                "format": format,
                "shape": [rows, columns],
                "copy_gb_s": best["copy"] / 1e9,
                "unpack_gb_s": best["unpack"] / 1e9,
                "ratio": best["unpack"] / best["copy"],
                "target": 0.95 if device == "cuda" else None,
            }
        )
    return records


# -- linear ----------------------------------------------------------------------------------


def bench_linear(device: str) -> Records:
    """Time of the packed linear over that of torch's linear in float32 (CPU) or bfloat16 (GPU)."""
    is_gpu = device == "cuda"
    batches = (1, 4, 16, 64, 256) if is_gpu else (1, 4, 16)
    records = []
    for (rows, columns), batch in itertools.product(SHAPES, batches):
        formats = tuple(PACKED_FORMATS) if is_gpu else ("mxint8", "mxint4")
        if batch == 1 and rows > columns:
            formats = tuple(PACKED_FORMATS)
        weight = torch.randn(rows, columns, device=device) / 64
        x = torch.randn(batch, columns, device=device)
        if is_gpu:
            weight, x = weight.bfloat16(), x.bfloat16()
        packed = {name: pack(weight, name) for name in formats}
        times = _linear_times(x, weight, packed)
        base = times["torch"].median
        for name in formats:
            records.append(
                {
                    "shape": [rows, columns],
                    "batch": batch,
                    "format": name,
                    **times[name].spread(),
                    "error": times[name].error,
                    "torch_us": base * 1e6,
                    "ratio": times[name].median / base,
                    "target": _target(device, rows * columns, batch, name),
                }
            )
    return records


def _target(device: str, elements: int, batch: int, format: str) -> float | None:
    is_square = elements == 4096 * 4096
    if format in ("mxint4", "mxfp4") and device == "cuda" and not is_square:
        return TARGETS_4_BITS.get(batch)
    targets = SQUARE_TARGETS if is_square else TARGETS
    return targets[device].get(batch) if format == "mxint8" else None


@torch.no_grad()
def _linear_times(
    x: Tensor, weight: Tensor, packed: Mapping[str, PackedTensor]
) -> dict[str, Times]:
    """Time torch's product and the packed ones; a GPU multiplies with cold copies."""
    is_gpu, error = x.is_cuda, ERRORS[x.dtype]
    weights = copies(weight.clone, weight.nbytes) if is_gpu else [weight]
    programs = {
        "torch": Timed([lambda w=w: F.linear(x, w) for w in weights], product(x, weight), error)
    }
    for name, given in packed.items():
        many = copies(lambda given=given: _copy(given), given.nbytes) if is_gpu else [given]
        calls = [lambda p=p: packed_linear(x, p) for p in many]
        programs[name] = Timed(calls, product(x, plain(given)), error)
    return compare(programs, rounds=15 if is_gpu else 11, clock=SHORT_CLOCK[x.device.type])


def _copy(packed: PackedTensor) -> PackedTensor:
    parts = (packed.codes.clone(), packed.scales.clone())
    return PackedTensor(*parts, packed.format, packed.group_size, packed.columns)


def bench_int8(device: str) -> Records:
    """int8 weights, and int8 weights and activations ("both"), over torch's linear."""
    from chop.kernels import int8_linear

    is_gpu, records = device == "cuda", []
    for batch in (1, 16, 256, 2048) if is_gpu else (1, 16, 256):
        dtype = torch.bfloat16 if is_gpu else torch.float32
        weight = (torch.randn(4096, 4096, device=device) / 64).to(dtype)
        x = torch.randn(batch, 4096, device=device).to(dtype)
        codes, scales = int8_linear.quantize_rows(weight)
        units = int8_linear.unit_scales(codes)
        programs: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
            "none": lambda w, c, x=x: F.linear(x, w),
            "weights": lambda w, c, a=(x, units, scales): int8_linear.weight_only_linear(
                a[0], c, a[1], a[2], None
            ),
            "both": lambda w, c, a=(x, units, scales): int8_linear.dynamic_linear(
                a[0], c, a[1], a[2], None
            ),
        }
        if not is_gpu:
            programs["weights, by torch"] = lambda w, c, x=x, s=scales: torch._weight_int8pack_mm(
                x, c, s
            )
        cold = [(weight, codes)]
        if is_gpu:
            cold = copies(lambda w=weight, c=codes: (w.clone(), c.clone()), codes.nbytes)
        calls = {n: [lambda p=p, c=c: p(*c) for c in cold] for n, p in programs.items()}
        rounded = product(x, codes.double() * scales.double().reshape(-1, 1))
        expected = dict.fromkeys(programs, rounded) | {"none": product(x, weight)}
        errors = dict.fromkeys(programs, ERRORS[dtype]) | {"both": ERROR_8_BITS}
        with torch.no_grad():
            times = compare(
                {name: Timed(calls[name], expected[name], errors[name]) for name in programs},
                clock=SHORT_CLOCK[device],
            )
        base = times["none"].median
        for name in list(programs)[1:]:
            ratio = times[name].median / base
            row = {"shape": [4096, 4096], "batch": batch, "rounded": name, **times[name].spread()}
            row["error"] = times[name].error
            records.append(row | {"torch_us": base * 1e6, "ratio": ratio})
    return records


def bench_sweep(device: str) -> Records:
    """Configurations of the GPU's packed linear, best first."""
    from chop.kernels.gpu import Config, run_linear

    small = [
        Config(16, n, k, warps, stages, per_sm)
        for n, k, warps, stages, per_sm in (
            (32, 128, 2, 4, 7), (32, 128, 2, 3, 10), (32, 256, 2, 3, 5), (32, 64, 2, 5, 10),
            (16, 256, 1, 4, 8), (16, 128, 1, 4, 14), (64, 128, 4, 3, 5), (32, 128, 2, 4, 4),
        )
    ]  # fmt: skip
    large = [
        Config(m, n, k, warps, stages, per_sm)
        for m, n, k, warps, stages, per_sm in (
            (64, 64, 128, 4, 3, 3), (128, 64, 64, 4, 4, 2), (256, 128, 64, 8, 3, 1),
        )
    ]  # fmt: skip
    records = []
    for batch, configs in ((16, small), (64, large)):
        for rows, columns in SHAPES[1:]:
            x = torch.randn(batch, columns, device=device, dtype=torch.bfloat16)
            packed = pack(torch.randn(rows, columns, device=device))
            many = copies(lambda packed=packed: _copy(packed), packed.nbytes)
            expected = product(x, plain(packed))
            for config in configs:
                calls = [
                    lambda p=p, c=config, x=x: run_linear(
                        x, p.codes, p.scales, None, p.format, p.group_size, c
                    )
                    for p in many
                ]
                try:
                    times = _time_alone(str(config), calls, expected)
                except RuntimeError as error:  # one configuration may not fit; the others count
                    print(f"sweep {config}: {type(error).__name__}")
                    continue
                settings = {name: getattr(config, name) for name in CONFIG_NAMES}
                records.append(
                    {"shape": [rows, columns], "batch": batch, **settings, **times.spread()}
                )
    return sorted(records, key=lambda r: (r["batch"], r["shape"], r["median_us"]))


def _time_alone(name: str, calls: list[Callable[[], Tensor]], expected: Tensor) -> Times:
    """Time one configuration of a kernel on the GPU, after its check."""
    program = Timed(calls, expected, ERRORS[torch.bfloat16])
    return compare({name: program}, clock="graph")[name]


def bench_cuts(device: str) -> Records:
    """Cuts of the kernel for few rows of x, best first."""
    from chop.kernels.hopper import Cut, prepared_as

    cuts = [Cut(0, *choice) for choice in itertools.product((1, 2), (4, 8, 16), (1, 2))]
    return _compare_cuts(_run_once(prepared_as), dict.fromkeys((8, 16), cuts))


def _run_once(prepared_as: Callable[..., Any]) -> Callable[..., Tensor]:
    """The product of what `prepared_as` is given, as a function."""
    return lambda x, *rest: prepared_as(x, *rest)(x)


def bench_cuts4(device: str) -> Records:
    """Cuts of the kernel for few rows of x and formats of 4 bits, best first."""
    from chop.kernels.hopper_few4 import ChunkCut, prepared_as

    settings = (
        (2, 8, 1, 16, 2),
        (2, 16, 1, 16, 1),
        (4, 8, 2, 8, 2),
        (4, 12, 2, 12, 1),
        (7, 8, 1, 8, 1),
        (7, 4, 1, 8, 2),
    )
    cuts = [ChunkCut(0, *choice) for choice in settings]
    return [
        {"format": format, **record}
        for format in ("mxint4", "mxfp4")
        for record in _compare_cuts(_run_once(prepared_as), dict.fromkeys((8, 16), cuts), format)
    ]


def bench_tiles(device: str) -> Records:
    """Tiles of the kernel for many rows of x, best first."""
    from chop.kernels.hopper_many import Tile, run_linear

    small = [Tile(0, 1), Tile(0, 2), Tile(0, 2, True), Tile(0, 4), Tile(0, 4, most_stages=3)]
    large = [Tile(64, 2, True), Tile(96, 2, True), Tile(128), Tile(128, 2, True), Tile(128, 4)]
    large += [Tile(256, 1, step=64), Tile(256, 2, True, 64), Tile(256, 4, step=64)]
    return _compare_cuts(run_linear, {32: small, 64: small, 128: large[:5], 256: large})


def _compare_cuts(
    run_linear: Callable[..., Tensor], choices: Mapping[int, list[Any]], format: str = "mxint8"
) -> Records:
    """Times of products that are cut up differently; a batch of 0 means the product's."""
    records = []
    for (batch, cuts), (rows, columns) in itertools.product(choices.items(), SHAPES):
        x = torch.randn(batch, columns, device="cuda", dtype=torch.bfloat16)
        packed = pack(torch.randn(rows, columns, device="cuda"), format)
        many = copies(lambda packed=packed: _copy(packed), packed.nbytes)
        expected = product(x, plain(packed))
        for chosen in cuts:
            cut = chosen if chosen.batch else dataclasses.replace(chosen, batch=batch)
            calls = [
                lambda p=p, c=cut, x=x: run_linear(
                    x, p.codes, p.scales, None, p.format, p.group_size, c
                )
                for p in many
            ]
            times = _time_alone(str(cut), calls, expected).spread()
            records.append({"shape": [rows, columns], "rows of x": batch, "cut": str(cut), **times})
    return sorted(records, key=lambda r: (r["rows of x"], r["shape"], r["median_us"]))


# -- the host --------------------------------------------------------------------------------


def bench_host(device: str) -> Records:
    """Microseconds that a call keeps the host, the GPU being done sooner: a layer of 256 x 256."""
    linear = torch.nn.Linear(256, 256, bias=False, device=device, dtype=torch.bfloat16)
    layers: dict[str, torch.nn.Module] = {"torch": linear}
    layers |= {name: QLinearPacked.from_linear(linear, name) for name in PACKED_FORMATS}
    x = torch.randn(1, 256, device=device, dtype=torch.bfloat16)
    weights = {name: plain(pack(linear.weight.data, name)) for name in PACKED_FORMATS}
    weights["torch"] = linear.weight
    programs = {
        name: Timed(lambda layer=layer: layer(x), product(x, weights[name]), ERRORS[torch.bfloat16])
        for name, layer in layers.items()
    }
    with torch.no_grad():
        times = compare(programs, rounds=15, clock="host")
    return [
        {"layer": name, **each.spread(), "ratio": each.median / times["torch"].median}
        for name, each in times.items()
    ]


# -- attention -------------------------------------------------------------------------------


def bench_decode_attention(device: str) -> Records:
    """One query of 32 heads in groups of 4, with a mask: torch's function, which wants the heads
    repeated, and ours."""
    records = []
    for batch, keys in itertools.product((1, 8), (256, 1024, 4096)):
        q = torch.randn(batch, 32, 1, 128, device=device, dtype=torch.bfloat16)
        k, v = (torch.randn(batch, 8, keys, 128, device=device).bfloat16() for _ in range(2))
        mask = (torch.arange(keys, device=device) < keys - 5).expand(batch, 1, 1, keys)
        options = {"attn_mask": mask, "scale": None, "enable_gqa": True}

        def torchs(q: Tensor = q, k: Tensor = k, v: Tensor = v, mask: Tensor = mask) -> Tensor:
            key, value = (x.repeat_interleave(4, 1) for x in (k, v))
            return F.scaled_dot_product_attention(q, key, value, mask)

        def ours(q: Tensor = q, k: Tensor = k, v: Tensor = v, options: Any = options) -> Tensor:
            return scaled_dot_product_attention(q, k, v, **options)

        expected = F.scaled_dot_product_attention(
            q.double(), *(x.double().repeat_interleave(4, 1) for x in (k, v)), mask
        )
        programs = {"torch": torchs, "ours": ours}
        times = compare(
            {n: Timed([p] * 20, expected, ERRORS[torch.bfloat16]) for n, p in programs.items()},
            rounds=15,
            clock="graph",
        )
        base = times["torch"].median
        records.append(
            {
                "batch": batch,
                "keys": keys,
                **times["ours"].spread(),
                "error": times["ours"].error,
                "torch_us": base * 1e6,
                "ratio": times["ours"].median / base,
            }
        )
    return records


def written_out(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attention as models write it: the softmax is taken in float32 and cast back."""
    scores = torch.matmul(q, k.transpose(-1, -2)) * scale + mask
    return torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)


def in_heads(hidden: Tensor) -> Tensor:
    """[batch, tokens, 768] as models hand it to attention: a view with the heads in front."""
    return hidden.unflatten(-1, (12, 64)).transpose(1, 2)


def out_of_heads(context: Tensor) -> Tensor:
    """The way back, in memory as the next layer wants it."""
    return context.transpose(1, 2).flatten(2)


LAYOUTS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "as in a model": (in_heads, out_of_heads),
    "contiguous heads": (lambda hidden: in_heads(hidden).contiguous(), lambda context: context),
}
"""Layout -> how heads are made beforehand, and what is done to the result within the time."""


def bench_attention(device: str) -> Records:
    """Fused attention against the same written out, on BERT-base shapes; torch's beside ours."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    records = []
    for length, (layout, (split, merge)) in itertools.product((128, 512), LAYOUTS.items()):
        q, k, v = (split(torch.randn(8, length, 768, device=device).to(dtype)) for _ in range(3))
        mask = torch.zeros(8, 1, length, length, device=device, dtype=dtype)
        programs = {
            "written out": lambda a=(q, k, v, mask), m=merge: m(written_out(*a, 0.125)),
            "fused": lambda a=(q, k, v, mask), m=merge: m(
                scaled_dot_product_attention(*a, scale=0.125)
            ),
            "torch_fused": lambda a=(q, k, v, mask), m=merge: m(
                F.scaled_dot_product_attention(*a, scale=0.125)
            ),
        }
        with torch.no_grad():
            expected = merge(written_out(q.double(), k.double(), v.double(), mask.double(), 0.125))
            count = 20 if device == "cuda" else 1
            allowed = dict.fromkeys(programs, ERRORS[dtype])
            allowed["written out"] *= 2  # it rounds scores and probabilities to `dtype` as well
            times = compare(
                {n: Timed([p] * count, expected, allowed[n]) for n, p in programs.items()},
                rounds=15 if device == "cuda" else 7 * 512 // length,  # short ones vary more
                clock=SHORT_CLOCK[device],
            )
        median = {name: each.median for name, each in times.items()}
        records.append(
            {
                "tokens": length,
                "layout": layout,
                **{f"{name}_us": t * 1e6 for name, t in median.items()},
                "speedup": median["written out"] / median["fused"],
                "target": 4.5 if device == "cuda" else 1.3,
            }
        )
    return records


# -- memory ----------------------------------------------------------------------------------


def bench_memory(device: str) -> Records:
    """What loading a model of linear layers adds to a process: float32, and packed."""
    with tempfile.TemporaryDirectory() as folder:
        grown = {kind: _grown(kind, folder) for kind in ("float32", "mxint8", "mxint4")}
    return [
        {
            "weights": kind,
            "grown_mib": size / 2**20,
            "ratio": size / grown["float32"],
            "target": 0.3 if kind == "mxint8" else None,
        }
        for kind, size in grown.items()
    ]


def _grown(kind: str, folder: str) -> int:
    """Bytes by which loading the checkpoint of `kind` grows a fresh process."""
    for step in ("write", "load"):
        command = [sys.executable, __file__, "--child", step, kind, folder]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1])


def child(step: str, kind: str, folder: str) -> None:
    """In a process of its own: write the checkpoint, or load it and say what that took."""
    from chop import MaseGraph

    file = Path(folder) / kind
    if step == "write":
        import chop.passes as passes

        model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(16)))
        graph = MaseGraph(model.eval(), dummy_in=torch.randn(1, 2048))
        if kind != "float32":
            passes.pack_weights_transform_pass(graph, {"format": kind})
        graph.export(file)
        return
    import chop.kernels  # noqa: F401  - what any program that packs has loaded

    before = _resident()
    graph = MaseGraph.from_checkpoint(file)
    for tensor in (*graph.model.parameters(), *graph.model.buffers()):
        tensor.flatten()[::1024].max()  # a mapped file counts once it is read
    print(_resident() - before)


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


# -- end to end ------------------------------------------------------------------------------


def bench_end_to_end(device: str) -> Records:
    """BERT-base with random weights: the float model, fused, packed, both; time and memory."""
    import transformers

    import chop.passes as passes
    from chop import MaseGraph

    config = transformers.BertConfig(num_labels=2, attn_implementation="eager")
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).eval()
    if device == "cuda":
        model.to(torch.bfloat16)  # before it is captured: a graph keeps the casts it has seen
    shape = (8, 128) if device == "cuda" else (1, 128)
    inputs = {
        "input_ids": torch.randint(1000, 20000, shape),
        "attention_mask": torch.ones(shape, dtype=torch.long),
    }
    base = MaseGraph(model, list(inputs), inputs)
    steps: dict[str, tuple[str, ...]] = {
        "float": (),
        "fused": ("fuse_patterns_transform_pass",),
        "packed": ("pack_weights_transform_pass",),
        "fused and packed": ("fuse_attention_transform_pass", "pack_weights_transform_pass"),
    }
    graphs = {}
    for name, passes_of in steps.items():
        graph = copy.deepcopy(base)
        for each in passes_of:
            passes.PASSES[each](graph)
        graphs[name] = graph.model.to(device).eval()
    records = []
    for batch, length in ((8, 128), (8, 512)) if device == "cuda" else (shape,):
        there = {
            "input_ids": torch.randint(1000, 20000, (batch, length), device=device),
            "attention_mask": torch.ones((batch, length), dtype=torch.long, device=device),
        }
        records += _forward_records(graphs, there)
    return records


@torch.no_grad()
def _forward_records(
    graphs: Mapping[str, torch.nn.Module], inputs: Mapping[str, Tensor]
) -> Records:
    """Each model's forward on `inputs`, launches included, against the first's."""
    is_gpu = inputs["input_ids"].is_cuda
    exact = copy.deepcopy(graphs["float"]).double()
    expected = exact(**inputs).logits
    least = 0.02 if is_gpu else 0.0  # bfloat16 over 12 layers
    programs = {
        name: Timed(
            lambda m=m: m(**inputs),
            expected,
            max(ERRORS_OF_BERT[name], least),
            lambda m=m: m(**inputs).logits,
        )
        for name, m in graphs.items()
    }
    times = compare(programs, rounds=25 if is_gpu else 5)
    first = times["float"].median
    return [
        {
            "tokens": list(inputs["input_ids"].shape),
            "model": name,
            **times[name].spread(),
            "speedup": first / times[name].median,
            "mib": _size(graphs[name]) / 2**20,
            "error": times[name].error,
        }
        for name in programs
    ]


def _size(model: torch.nn.Module) -> int:
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    return sum(t.nbytes for t in tensors.values())


# -- the program -----------------------------------------------------------------------------

SECTIONS: dict[str, tuple[tuple[str, ...], Callable[[str], Records]]] = {
    "unpack": (("cpu", "cuda"), bench_unpack),
    "linear": (("cpu", "cuda"), bench_linear),
    "int8": (("cpu", "cuda"), bench_int8),
    "host": (("cuda",), bench_host),
    "attention": (("cpu", "cuda"), bench_attention),
    "decode_attention": (("cuda",), bench_decode_attention),
    "memory": (("cpu",), bench_memory),
    "end_to_end": (("cpu", "cuda"), bench_end_to_end),
    "sweep": (("cuda",), bench_sweep),
    "cuts": (("cuda",), bench_cuts),
    "cuts4": (("cuda",), bench_cuts4),
    "tiles": (("cuda",), bench_tiles),
}
"""The devices of each section, and the section."""


def check_kernels() -> None:
    """Compare the GPU's kernels with the reference, each format and group size in a process."""
    folder = Path(__file__).parents[1] / "tests" / "kernels"
    command = [sys.executable, str(folder / "check_gpu.py"), "cuda"]
    running = [
        subprocess.Popen([*command, f"{format}/{group_size}"])
        for format, group_size in itertools.product(PACKED_FORMATS, GROUP_SIZES)
    ]
    attention = [sys.executable, str(folder / "check_gpu_attention.py"), "cuda"]
    running.append(subprocess.Popen(attention))
    failed = sum(process.wait() != 0 for process in running)
    print(f"kernels checked: {len(running) - failed} of {len(running)} are right.")


def show(name: str, records: Records) -> None:
    print(f"\n{name}")
    for record in records:
        cells = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in record.items())
        print("  " + "  ".join(cells))


def main() -> int:
    """Run the sections; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--section", action="append", choices=tuple(SECTIONS))
    parser.add_argument("--skip-check", action="store_true")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(*args.child)
        return 0
    torch.set_num_threads(args.threads)
    if args.device == "cuda" and not args.skip_check:
        check_kernels()
    chosen = args.section or [n for n, (devices, _) in SECTIONS.items() if args.device in devices]
    failed = 0
    for name in chosen:
        watch = Stopwatch()
        try:
            records = SECTIONS[name][1](args.device)
        except Exception:  # the other sections are still worth having
            print(f"\n{name} failed:\n{traceback.format_exc()}")
            failed += 1
            continue
        save_section(f"kernels_{args.device}", name, records)
        show(f"{name} ({watch.seconds:.0f} s)", records)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
