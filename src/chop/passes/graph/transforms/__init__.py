"""Passes that change the graph and leave it runnable, its metadata in step."""

from chop.compat.old_names import lazy_names
from chop.passes.base import check_exports
from chop.passes.graph.transforms.compile import compile_transform_pass
from chop.passes.graph.transforms.correct_bias import correct_bias_transform_pass
from chop.passes.graph.transforms.decompose_attention import (
    decompose_attention_transform_pass,
)
from chop.passes.graph.transforms.decompose_recurrent import (
    decompose_recurrent_transform_pass,
)
from chop.passes.graph.transforms.emit_bram import emit_bram_transform_pass
from chop.passes.graph.transforms.emit_cocotb import emit_cocotb_transform_pass
from chop.passes.graph.transforms.emit_internal_rtl import emit_internal_rtl_transform_pass
from chop.passes.graph.transforms.emit_verilog_top import emit_verilog_top_transform_pass
from chop.passes.graph.transforms.equalize import equalize_transform_pass
from chop.passes.graph.transforms.extract_subgraph import extract_subgraph_transform_pass
from chop.passes.graph.transforms.fix_sizes import fix_sizes_transform_pass
from chop.passes.graph.transforms.fuse_attention import fuse_attention_transform_pass
from chop.passes.graph.transforms.fuse_conv_bn import fuse_conv_bn_transform_pass
from chop.passes.graph.transforms.fuse_patterns import fuse_patterns_transform_pass
from chop.passes.graph.transforms.gptq import clip_transform_pass, gptq_transform_pass
from chop.passes.graph.transforms.learn_scales import learn_scales_transform_pass
from chop.passes.graph.transforms.learned_rounding import learned_rounding_transform_pass
from chop.passes.graph.transforms.low_rank_adapters import (
    fuse_lora_weights_transform_pass,
    insert_lora_adapter_transform_pass,
)
from chop.passes.graph.transforms.pack_weights import pack_weights_transform_pass
from chop.passes.graph.transforms.prune import (
    pack_semi_structured_transform_pass,
    prune_detach_hook_transform_pass,
    prune_transform_pass,
)
from chop.passes.graph.transforms.quantize import quantize_transform_pass
from chop.passes.graph.transforms.replace_module import replace_module_transform_pass
from chop.passes.graph.transforms.rotate import rotate_transform_pass
from chop.passes.graph.transforms.simplify_graph import (
    eliminate_common_subexpressions_transform_pass,
    eliminate_dead_code_transform_pass,
    fold_constants_transform_pass,
    remove_dropout_transform_pass,
)
from chop.passes.graph.transforms.smooth import smooth_transform_pass

__all__ = [
    "clip_transform_pass",
    "compile_transform_pass",
    "correct_bias_transform_pass",
    "decompose_attention_transform_pass",
    "decompose_recurrent_transform_pass",
    "eliminate_common_subexpressions_transform_pass",
    "eliminate_dead_code_transform_pass",
    "emit_bram_transform_pass",
    "emit_cocotb_transform_pass",
    "emit_internal_rtl_transform_pass",
    "emit_verilog_top_transform_pass",
    "equalize_transform_pass",
    "extract_subgraph_transform_pass",
    "fix_sizes_transform_pass",
    "fold_constants_transform_pass",
    "fuse_attention_transform_pass",
    "fuse_conv_bn_transform_pass",
    "fuse_lora_weights_transform_pass",
    "fuse_patterns_transform_pass",
    "gptq_transform_pass",
    "insert_lora_adapter_transform_pass",
    "learn_scales_transform_pass",
    "learned_rounding_transform_pass",
    "pack_semi_structured_transform_pass",
    "pack_weights_transform_pass",
    "prune_detach_hook_transform_pass",
    "prune_transform_pass",
    "quantize_transform_pass",
    "remove_dropout_transform_pass",
    "replace_module_transform_pass",
    "rotate_transform_pass",
    "smooth_transform_pass",
]

check_exports(globals())

__getattr__ = lazy_names(__name__)
