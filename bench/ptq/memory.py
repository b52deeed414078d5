"""Time and memory of calibrating and rounding a whole model, layer by layer.

    python bench/ptq/memory.py --llama MODELS/llama-imdb --data DATA/imdb [--rows 128] [--threads 2]

Peak memory is counted from what the process holds once the text is read and a small model of the
same kind has been through everything, so that all is imported; the model is part of it. The bound
is 1.5 times the model in float32 plus the activations of one block: all that the modules of a
decoder layer give, for all rows at once. Linux only (reads /proc/self). Writes the section of the
number of rows in bench/results/ptq_memory.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from methods import rules
from subjects import Batch, Subject, add_options, subjects
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from chop import MaseGraph
from chop.actions.post_training import quantize_with_data

sys.path.append(str(Path(__file__).parents[1]))
from measuring.checked import is_sound, once
from measuring.record import save_section

MIB = 2**20


def main() -> None:
    """Quantise once and write what it took."""
    args = _arguments()
    subject = subjects(args)[0]
    batches = subject.calibration(0, args.rows)
    _warm_up(subject, args)
    base = _memory("VmRSS")
    found = _quantised(subject, batches, args)
    model_bytes, block_bytes = found.pop("sizes")
    peak = _memory("VmHWM") - base
    before, at_most_before = (each - base for each in found.pop("traced"))
    bound = 1.5 * model_bytes + block_bytes
    result = {
        "rows": args.rows,
        "tokens": sum(b["input_ids"].numel() for b in batches),
        "scheme": args.scheme,
        "method": args.method,
        "threads": args.threads,
        **found,
        "model_mib": round(model_bytes / MIB, 1),
        "block_mib": round(block_bytes / MIB, 1),
        "bound_mib": round(bound / MIB, 1),
        "peak_mib": round(peak / MIB, 1),
        "traced_mib": round(before / MIB, 1),
        "peak_of_tracing_mib": round(at_most_before / MIB, 1),
        "is_within_bound": peak <= bound,
    }
    print(json.dumps(result, indent=2))
    print(save_section("ptq_memory", f"{subject.name} {args.rows} rows", result))


def _warm_up(subject: Subject, args: argparse.Namespace) -> None:
    """Import what the work needs, on a model of one narrow layer."""
    config = AutoConfig.from_pretrained(
        subject.folder, num_hidden_layers=1, hidden_size=64, intermediate_size=64, vocab_size=64
    )
    ids = torch.zeros(2, 16, dtype=torch.long)
    config.use_cache = False
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    graph = MaseGraph(model, ["input_ids"], {"input_ids": ids})
    chosen = rules(subject, graph.model, args.scheme)
    quantize_with_data(graph, chosen, [{"input_ids": ids}], args.method)


def _quantised(subject: Subject, batches: list[Batch], args: argparse.Namespace) -> dict[str, Any]:
    """Load, trace, quantise: minutes of each, and the sizes of the model and of a block."""
    model = subject.load()
    sizes = sum(4 * p.numel() for p in model.parameters()), _block_bytes(model, batches)
    dummy = {k: v[:2] for k, v in batches[0].items()}
    capture = once(
        "capture", lambda: MaseGraph(model, list(dummy), dummy), lambda graph: graph.fx_graph.nodes
    )
    graph = capture.result
    held = _memory("VmRSS"), _memory("VmHWM")
    chosen = rules(subject, graph.model, args.scheme)
    took = once(
        args.method,
        lambda: quantize_with_data(graph, chosen, batches, args.method),
        lambda _: is_sound(list(graph.model.parameters())),
    )
    return {
        "sizes": sizes,
        "traced": held,
        "trace_seconds": round(capture.seconds, 1),
        "minutes": round(took.seconds / 60, 2),
        "processor_minutes": round(took.processor_seconds / 60, 2),
    }


@torch.no_grad()
def _block_bytes(model: nn.Module, batches: list[Batch]) -> int:
    """Bytes that the modules of the first block give for all rows."""
    block = next(m[0] for m in model.modules() if isinstance(m, nn.ModuleList))
    seen: dict[str, int] = {}
    hooks = [
        module.register_forward_hook(_counted(seen, name))
        for name, module in block.named_modules()
        if not list(module.children())
    ]
    model(**{k: v[:1] for k, v in batches[0].items()})
    for hook in hooks:
        hook.remove()
    return sum(seen.values()) * sum(len(b["input_ids"]) for b in batches)


def _counted(seen: dict[str, int], name: str) -> Any:
    def hook(_: nn.Module, __: Any, output: Any) -> None:
        first = output if isinstance(output, Tensor) else output[0]
        seen[name] = first.numel() * first.element_size()

    return hook


def _memory(field: str) -> int:
    """Bytes that /proc/self/status says."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_options(parser)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--scheme", default="W4 group 32")
    parser.add_argument("--method", default="gptq")
    return parser.parse_args()


if __name__ == "__main__":
    main()
