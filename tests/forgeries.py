"""Files made to do harm: a small checkpoint, edits of its graph, and an ear for what runs.

Each forgery is an edit of the JSON of a valid checkpoint, whose checksum is then made to fit, with
the words of the error it must end in. Shared by the tests and by bench/safe.py.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import shutil
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from scratch import new_folder
from torch import nn

import chop
import chop.passes as passes
from chop import MaseGraph
from chop.ir.store.checkpoint import digest

Description = dict[str, Any]
Edit = Callable[[Description], Any]


def words(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


class Small(nn.Module):
    """Every kind of node, a recipe's class, a parametrised layer and a recurrent one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)
        self.norm = nn.BatchNorm2d(2)
        self.fc = nn.Linear(8, 4)
        self.lstm = nn.LSTM(4, 3)
        self.wn = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        x = nn.functional.max_pool2d(x, 2).view(x.shape[0], -1)
        x, _ = self.lstm((self.fc(x) * self.scale).softmax(-1))
        return {"logits": self.wn(x)}


LINEAR = {
    "name": "integer",
    "data_in_width": 8,
    "data_in_frac_width": 4,
    "weight_width": 8,
    "weight_frac_width": 6,
    "bias_width": 8,
    "bias_frac_width": 4,
}


@functools.cache
def valid() -> Path:
    """A checkpoint of `Small`, annotated, with a quantised and a pruned layer."""
    torch.manual_seed(0)
    inputs = {"x": torch.randn(2, 1, 4, 4)}
    graph = MaseGraph(Small().eval(), dummy_in=inputs)
    graph, _ = passes.init_metadata_analysis_pass(graph)
    graph, _ = passes.add_common_metadata_analysis_pass(graph, {"dummy_in": inputs})
    weight = {"sparsity": 0.5, "scope": "local", "method": "l1-norm"}
    graph, _ = passes.prune_transform_pass(graph, {"weight": weight})
    quantize = {"by": "name", "fc": {"config": LINEAR}}
    graph, _ = passes.quantize_transform_pass(graph, quantize)
    path = new_folder("forgeries.") / "model"
    graph.export(path)
    return path


def description() -> Description:
    """What the valid checkpoint says, to edit."""
    return json.loads(valid().with_suffix(".json").read_text())


def write_forged(folder: Path, told: Any, *, sign: bool = True, text: str | None = None) -> Path:
    """A checkpoint in `folder` that says `told`, with the valid tensors."""
    path = folder / "model"
    if sign and isinstance(told, dict):
        told["sha256"] = digest(told)
    path.with_suffix(".json").write_text(json.dumps(told) if text is None else text)
    shutil.copy(valid().with_suffix(".safetensors"), path.with_suffix(".safetensors"))
    return path


# -- edits -----------------------------------------------------------------------------------


def node(told: Description, op: str, target: str | None = None) -> dict[str, Any]:
    """The first node of that op and target."""
    return next(n for n in told["nodes"] if n["op"] == op and target in (None, n["target"]))


def call(function: str, *args: Any, **kwargs: Any) -> Edit:
    """Make the relu call `function` instead; without arguments, with its own."""

    def edit(told: Description) -> None:
        chosen = node(told, "call_function", "torch.relu")
        chosen["target"] = function
        if args or kwargs:
            chosen["args"], chosen["kwargs"] = {"$tuple": list(args)}, kwargs

    return edit


def method(name: str) -> Edit:
    """Make the softmax call the method `name` instead."""
    return lambda told: node(told, "call_method", "softmax").update(target=name)


def reads(name: Any) -> Edit:
    """Make the node that reads the shape read the attribute `name`."""

    def edit(told: Description) -> None:
        node(told, "call_function", "builtins.getattr")["args"]["$tuple"][1] = name

    return edit


def argument(value: Any) -> Edit:
    """Give the relu `value`."""
    return lambda told: node(told, "call_function", "torch.relu").update(args={"$tuple": [value]})


def keyword(name: str, value: Any = 1) -> Edit:
    """Give the relu the keyword argument `name`."""
    return lambda told: node(told, "call_function", "torch.relu").update(kwargs={name: value})


def attribute(name: str, value: Any, module: str = "norm") -> Edit:
    """Give a module the attribute `name`."""
    return lambda told: told["modules"][module]["attributes"].update({name: value})


def cls(name: Any, module: str = "norm") -> Edit:
    """Make a module of another class."""
    return lambda told: told["modules"][module].update({"class": name})


def recipe(maker: Any, *parts: Any) -> Edit:
    """Make a module of a class that is made at run time."""
    return cls({"made_by": maker, "of": list(parts)})


def renamed_input(name: Any) -> Edit:
    """Give the input another name."""
    return lambda told: node(told, "placeholder").update(target=name)


def renamed_node(name: Any) -> Edit:
    """Give the output node another name."""
    return lambda told: told["nodes"][-1].update(name=name)


def moved_module(name: str) -> Edit:
    """Put the norm at another path."""

    def edit(told: Description) -> None:
        told["modules"][name] = told["modules"].pop("norm")
        node(told, "call_module", "norm")["target"] = name

    return edit


def put(*path: Any, value: Any) -> Edit:
    """Set what lies at a path of keys and indices."""

    def edit(told: Description) -> None:
        place: Any = told
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return edit


def drop(*path: Any) -> Edit:
    """Remove what lies at a path of keys and indices."""

    def edit(told: Description) -> None:
        place: Any = told
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    return edit


NO_CALL = "is not an operation a graph may call"
NO_METHOD = "is not a method of a tensor a graph may call"
NO_READ = "is not an attribute a graph may read"
NO_INPUT = "cannot be the name of an input"
NO_NAME = "is no identifier, or there twice"
NO_CLASS = "is not one of torch or MASE that a file may name"
NO_KEYWORD = "is not an identifier"
NO_ATTRIBUTE = "cannot be set: it is no identifier, or a member of"
NO_PATH = "is not the path of a part of a model"
NO_KIND = "is not allowed. Allowed:"
X = {"$node": "x"}

FUNCTIONS = words("""
os.system posix.system subprocess.Popen subprocess.run builtins.eval builtins.exec builtins.open
builtins.compile builtins.__import__ builtins.setattr builtins.delattr builtins.type builtins.map
builtins.sorted builtins.print builtins.input builtins.breakpoint builtins.memoryview
importlib.import_module runpy.run_path pickle.loads marshal.loads shutil.rmtree ctypes.CDLL
socket.create_connection functools.partial functools.reduce operator.methodcaller
operator.attrgetter operator.itemgetter operator.call operator.__call__ operator.__getattribute__
operator.delitem torch.load torch.save torch.compile torch.hub.load torch.jit.load torch.jit.script
torch.ops.load_library torch.classes.load_library torch.utils.cpp_extension.load
torch.from_file torch.frombuffer torch.from_dlpack torch.utils.dlpack.from_dlpack
torch.Tensor.apply_ torch.Tensor.map_ torch._C._VariableFunctions.from_file torch._C._nn._parse_to
torch.fbgemm_linear_int8_weight torch.nn.functional.torch.os.system
torch.nn.functional.handle_torch_function torch.nn.functional.boolean_dispatch
torch.nn.functional.importlib.import_module torch.functional.torch.load
torch.distributed.init_process_group
torch.multiprocessing.spawn torch.package.PackageImporter torch.serialization.load
torch.utils._pytree.tree_map torch.vmap torch.func.grad torch.autograd.grad torch.set_default_device
torch.nn.init.normal_ torch.ops.aten.relu torch.overrides.handle_torch_function
numpy.load numpy.fromfile numpy.save numpy.ndarray.tofile math.__loader__.load_module
math.__class__ builtins.object builtins.getattr.__call__ chop.native.load
chop.nn.quantizers.kernels.ctypes.CDLL chop.nn.quantizers.kernels.library
chop.nn.quantized.functional.importlib.import_module chop.nn.quantized.functional.make_functions
chop.nn.quantized.convert.mixed_class chop.nn.modules.masked.masked_class chop.hub.locate
chop.search.workers.pickle.loads transformers.utils.logging.os.system
transformers.AutoModel.from_pretrained transformers.models.bloom.modeling_bloom.math.sqrt
transformers.models.bloom.modeling_bloom.GeLUFunction.apply.__call__
transformers.dynamic_module_utils.get_class_from_dynamic_module ../../evil.f .. . torch. .system
torch.relu\u200b torch.ｒelu
""")
METHODS = words("""
__reduce_ex__ __class__ __getattribute__ __setattr__ __init_subclass__ __torch_function__ apply_
map_ map2_ register_hook register_post_accumulate_grad_hook backward share_memory_ storage
untyped_storage data_ptr const_data_ptr numpy __dlpack__ module_load set_ resize_ as_subclass
record_stream tofile dump format join softmax() softmax;x sｏftmax
""")
METHODS += ["softmax\n", " softmax", "softmax.__call__", ""]
ATTRIBUTES: list[Any] = [
    *words("__class__ __globals__ __dict__ __reduce__ __init__ _backward_hooks _grad_fn grad_fn"),
    *words("register_hook apply_ map_ storage data_ptr forward func_globals gi_frame f_globals"),
    *("shape.__class__", "shape\n", "", "ｓhape", 3, None, ["shape"], {"$node": "x"}),
]
NAMES: list[Any] = [
    "x): import os; os.system('true') #",
    "x=__import__('os').system('true')",
    "x\n    import os",
    "x, y",
    "*args",
    "**kwargs",
    "x:int",
    "lambda",
    "class",
    "None",
    "__class__",
    "__builtins__",
    "self",
    "torch",
    "getattr",
    "ﬁ",
    "ªx",
    "x\u200b",
    "1x",
    "a.b",
    "a-b",
    "",
    "x" * 100_000,
    7,
    None,
    ["x"],
]
CLASSES: list[Any] = [
    *words("subprocess.Popen builtins.object torch.nn.Parameter torch.jit.ScriptModule"),
    *words("torch.nn.modules.linear.torch.jit.ScriptModule torch.nn.modules.linear.LazyLinear"),
    *words("torch.nn.parallel.DataParallel torch.nn.DataParallel torch.fx.GraphModule"),
    *words("torch.nn.parallel.distributed.DistributedDataParallel torch.optim.SGD"),
    *words("torch.ao.nn.quantized.Linear torch.nn.utils.parametrizations._Orthogonal.__init__"),
    *words("transformers.Trainer transformers.modeling_utils.PreTrainedModel"),
    *words("transformers.models.bert.modeling_bert.BertModel transformers.models.bert"),
    *words("transformers.models.bert.modeling_bert.nn.Linear chop.ir.store.traced.TracedModule"),
    *words("chop.nn.modules.masked.Masked.__class__ chop.kernels.layers.nn.Linear"),
    *words("chop.nn.modules.os.path chop.cli.main.Session imported_by_name.Layer"),
    *("torch.nn.modules.linear.Linear\n", "", "..", "torch.nn.modules.linear.Lineаr"),
]
MEMBERS = words("""
forward __call__ __class__ __dict__ __getattr__ __reduce__ __setstate__ __init__ _apply _call_impl
_forward_hooks _forward_pre_hooks _backward_hooks _parameters _modules _buffers training train eval
to state_dict _save_to_state_dict extra_repr _load_from_state_dict register_forward_hook
_state_dict_hooks _compiled_call_impl _is_full_backward_hook __annotations__ call_super_init
dump_patches T_destination _version reset_parameters
""")
PATHS = ["__class__", "forward", "graph", "code", "_modules", "norm.__class__", "conv.weight.data"]
PATHS += [
    'a"); import os; ("',
    "a b",
    "a\nb",
    "a..b",
    "",
    ".",
    "a" * 5000,
    "conv.x",
    "lstm.0",
]
VALUES: list[tuple[Any, str]] = [
    ({"$function": "torch.relu"}, NO_KIND),
    ({"$function": "os.system"}, NO_KIND),
    ({"$class": "os"}, NO_KIND),
    ({"$pickle": "gASV"}, NO_KIND),
    ({"$own": "weight"}, NO_KIND),
    ({"$record": ["MaseMetadata", {}]}, NO_KIND),
    ({"$quantizer": ["integer", {"width": 8}]}, NO_KIND),
    ({"$tuple": [], "$node": "x"}, NO_KIND),
    ({"plain": 1, "$node": "x"}, NO_KIND),
    ({"$__call__": []}, NO_KIND),
    ({"$": 1}, NO_KIND),
    ({"$node": "nowhere"}, "is used before it is made"),
    ({"$node": "output"}, "is used before it is made"),
    ({"$node": ["x"]}, "is used before it is made"),
    ({"$tuple": 3}, "expected a list of values"),
    ({"$slice": [1, 2]}, "expected a list of 3 values"),
    ({"$range": [0, 3, 0]}, "are not the three numbers of a range"),
    ({"$range": ["a", 3, 1]}, "are not the three numbers of a range"),
    ({"$float": "1e999"}, "is not one of inf, -inf, nan"),
    ({"$float": "__import__('os')"}, "is not one of inf, -inf, nan"),
    ({"$complex": [1]}, "expected a list of 2 values"),
    ({"$complex": ["1", "2"]}, "are not two numbers"),
    ({"$torch": "load"}, "is not a dtype, layout or memory format"),
    ({"$torch": "os.system"}, "is not a dtype, layout or memory format"),
    ({"$torch": None}, "is not a dtype, layout or memory format"),
    ({"$device": "cpu; import os"}, "is not a device"),
    ({"$device": "privateuseone:0"}, "is not a device"),
    ({"$device": 0}, "is not a device"),
    ({"$set": [[1]]}, "cannot be a key"),
    ({"$dict": [[[1], 2]]}, "cannot be a key"),
    ({"$dict": [[1, 2], [1, 3]]}, "a key is there twice"),
    ({"$dict": [1]}, "expected a list of 2 values"),
    ({"$ellipsis": "x"}, "expected true"),
    (2**70, "a number of 71 bits"),
    ("x" * 200_000, "200000 characters"),
]
PUTS: list[tuple[Edit, str]] = [
    (put("nodes", value=[]), "expected a list of nodes"),
    (put("nodes", value={}), "key 'nodes' is missing or not"),
    (put("nodes", 0, value=None), "nodes.0.: expected the keys"),
    (put("nodes", 1, "op", value="exec"), "Allowed: placeholder, get_attr"),
    (put("nodes", 1, "op", value=["call_module"]), "Allowed: placeholder, get_attr"),
    (put("nodes", 1, "op", value="output"), "a graph has one output"),
    (put("nodes", -1, "op", value="placeholder"), "a graph has one output"),
    (put("nodes", -1, "target", value="exit"), "Allowed: output"),
    (put("nodes", 1, "stack_trace", value="File x"), "expected the keys"),
    (put("nodes", 1, "type", value="os.system"), "expected the keys"),
    (put("nodes", 1, "type_expr", value="__import__('os')"), "expected the keys"),
    (drop("nodes", 1, "args"), "expected the keys"),
    (put("nodes", 1, "args", value=[X]), "expected a tuple"),
    (put("nodes", 1, "kwargs", value=[]), "expected a tuple, and a mapping"),
    (put("nodes", 0, "args", value={"$tuple": [1, 2]}), "a placeholder has 1 and no kwargs"),
    (put("nodes", 0, "kwargs", value={"a": 1}), "a placeholder has 1 and no kwargs"),
    (put("nodes", -1, "args", value={"$tuple": []}), "a output has 1 and no kwargs"),
    (put("nodes", 1, "mase", value={"$record": ["os.system", {}]}), "unknown metadata record"),
    (put("nodes", 1, "mase", value={"$record": ["ValueMeta", {"x": 1}]}), "has no such field"),
    (put("nodes", 1, "mase", value={"$record": ["ValueMeta", {"shape": "a"}]}), "expected list"),
    (put("nodes", 1, "mase", value={"$function": "torch.relu"}), NO_KIND),
    (put("class_name", value="A:\n  import os"), "class_name: .* is not an identifier"),
    (put("class_name", value="class"), "class_name: .* is not an identifier"),
    (put("class_name", value=3), "key 'class_name' is missing or not"),
    (put("id", value="../../../../etc/passwd"), "the checkpoint's id is"),
    (put("id", value="0" * 32), "belongs to another checkpoint"),
    (put("version", value=True), "version True; this release reads"),
    (put("version", value=4), "version 4; this release reads 1, 2 and 3"),
    (put("format", value="pickle"), "not a MaseGraph checkpoint"),
    (put("codegen", value="torch.fx.graph.CodeGen"), "unknown key 'codegen'"),
    (put("_pytree", value=["x"]), "unknown key '_pytree'"),
    (put("guards", value=[{"$function": "os.system"}]), "key 'guards' is missing or not"),
    (drop("tensors"), "key 'tensors' is missing"),
    (drop("modules"), "key 'modules' is missing"),
    (put("output", value={"class": "transformers.Trainer", "parts": []}), "not the class of an"),
    (put("output", value={"class": "os.system", "parts": []}), "not the class of an output"),
    (put("output", value={"class": "builtins.exec", "parts": []}), "not the class of an output"),
    (put("output", value={"class": None}), "expected class and parts"),
    (put("output", value={"class": None, "parts": [[[], None]]}), "expected pairs"),
    (put("config", value={"model_type": "os", "fields": {}}), "is not a type of transformers"),
    (put("config", value={"model_type": "bert", "fields": {"to_dict": 1}}), "cannot be a field"),
    (put("config", value={"model_type": "bert", "fields": {"__class__": 1}}), "cannot be a field"),
    (put("config", value={"model_type": "bert", "fields": {"hidden_size": []}}), "not those of a"),
    (put("config", value={"model_type": "bert"}), "expected model_type and fields"),
    (put("training", "nowhere", value=True), "no such module, or not true or false"),
    (put("training", "", value="yes"), "no such module, or not true or false"),
    (put("aliases", "fc.weight", value="absent"), "'absent' is missing"),
    (put("aliases", "fc.weight", value=["conv.weight"]), "is not the name of a tensor"),
    (put("aliases", "fc.bias", value="fc.bias"), "is not the name of a tensor"),
    (put("views", "fc.bias", value={"of": "absent"}), "expected of, offset, shape and stride"),
    (
        put(
            "views",
            "fc.bias",
            value={"of": "fc.weight", "offset": 0, "shape": [9**9], "stride": [1]},
        ),
        "reaches beyond",
    ),
    (
        put(
            "views", "fc.bias", value={"of": "fc.weight", "offset": -8, "shape": [4], "stride": [1]}
        ),
        "expected lists of numbers",
    ),
    (put("tensors", "fc.bias", "shape", value=[5]), "shape is .4., the graph says .5."),
    (put("tensors", "fc.bias", "dtype", value="int32"), "dtype is float32, the graph says 'int32'"),
    (put("tensors", "fc.bias", "sha256", value="0" * 64), "its checksum is not the one"),
    (put("tensors", "fc.weight", "stride", value=[1, 2**40]), "stride .* does not fit"),
    (put("tensors", "fc.weight", "stride", value=["a", 1]), "stride .* does not fit"),
    (put("tensors", "fc.bias", value=None), "expected dtype, shape and sha256"),
    (put("tensors", "more", value={}), "does not hold the tensors"),
    (put("attributes", "scale", value={"requires_grad": 1}), "expected true or false"),
    (put("attributes", "scale", value={"code": "x"}), "expected requires_grad or persistent"),
    (put("attributes", "forward", value={"persistent": True}), NO_PATH),
    (drop("attributes", "scale"), "there is no parameter or buffer 'scale'"),
    (drop("modules", "norm"), "there is no module 'norm'"),
    (put("modules", "norm", value=None), "expected the keys attributes, buffers"),
    (put("modules", "norm", "hooks", value=[]), "expected the keys attributes, buffers"),
    (put("modules", "norm", "buffers", value=[]), "expected a mapping"),
    (put("modules", "norm", "buffers", "running_var", value="no"), "Allowed: true, false"),
    (put("modules", "norm", "buffers", "forward", value=True), "cannot be the name of a part"),
    (put("modules", "norm", "parameters", "__class__", value=True), "cannot be the name of a part"),
    (put("modules", "norm", "parameters", "extra", value=True), "'norm.extra' is missing"),
    (put("modules", "norm", "children", "forward", value={}), "cannot be the name of a part"),
    (put("modules", "norm", "parametrized", value=["weight"]), "no such parametrizations"),
    (put("modules", "wn", "parametrized", value=["forward"]), "no such parametrizations"),
    (put("modules", "wn", "parametrized", value="weight"), "expected a list of names"),
    (put("modules", "lstm", "attributes", "_flat_weights", value=[{"$own": "x"}]), "no tensor 'x'"),
    (put("modules", "lstm", "attributes", "_all_weights", value=3), "not those of a LSTM"),
    (attribute("eps", "1"), "modules.norm.attributes.eps: expected float, got '1'"),
    (attribute("num_features", [2]), "num_features: expected int"),
    (attribute("eps", {"$function": "torch.relu"}), "a function is not data of"),
    (attribute("activation", {"$function": "os.system"}), NO_CALL),
    (attribute("config", {"$quantizer": ["evil", {}]}, "fc"), "unknown number format 'evil'"),
    (attribute("config", {"$quantizer": ["integer", {"width": "8"}]}, "fc"), "expected int"),
    (attribute("config", {"$quantizer": ["integer", {"code": 8}]}, "fc"), "unknown key 'code'"),
    (attribute("config", "evil", "fc"), "expected dict"),
    (recipe("os.system", "true"), "makes no class of a list of classes"),
    (recipe("torch.relu", "torch.nn.modules.linear.Linear"), "makes no class of a list"),
    (recipe("builtins.getattr", "torch.nn.modules.linear.Linear"), "makes no class of a list"),
    (recipe("chop.nn.modules.masked.masked_class"), "makes no class of"),
    (recipe("chop.nn.modules.masked.masked_class", "os.system"), NO_CLASS),
    (recipe("chop.nn.modules.masked.masked_class", 3), "expected the name of a class"),
    (
        recipe("chop.nn.quantized.convert.mixed_class", *["torch.nn.modules.linear.Linear"] * 2),
        "makes no class of .Linear, Linear.",
    ),
    (cls({"made_by": "x"}), "expected the name of a class"),
    (cls(None), "expected the name of a class"),
    (call("builtins.max", X, key={"$function": "os.system"}), NO_KIND),
    (call("builtins.max", X, key=X), "'builtins.max' takes none"),
    (call("builtins.getattr", X, "shape", X), NO_READ),
    (call("builtins.getattr", "text", "format"), NO_READ),
    (call("operator.mod", "%s", X), "takes no text"),
    (call("operator.add", "a", "b"), "takes no text"),
    (call("operator.getitem", "text", 0), "takes a node and a key"),
    (call("operator.getitem", 1.5, 0), "takes a node and a key"),
    (call("operator.getitem", X), "takes a node and a key"),
    (call(3), "expected the name of a function"),
    (call(["torch.relu"]), "expected the name of a function"),
    (lambda t: node(t, "get_attr").update(target="fc.forward"), "no parameter or buffer"),
    (lambda t: node(t, "get_attr").update(target="__class__"), "no parameter or buffer"),
    (lambda t: node(t, "get_attr").update(target=["scale"]), "expected a name"),
    (lambda t: node(t, "call_module").update(target="norm.forward"), "there is no module"),
    (lambda t: node(t, "call_module").update(target=""), "there is no module"),
    (lambda t: node(t, "call_method").update(args={"$tuple": ["text"]}), "called on a node"),
    (lambda t: node(t, "placeholder").update(args={"$tuple": [X]}), "is used before it is made"),
    (lambda t: t["nodes"].insert(2, dict(t["nodes"][0], name="z", target="z")), "inputs come bef"),
    (lambda t: t["nodes"].insert(1, dict(t["nodes"][0], name="z")), NO_INPUT),
]


def forgeries() -> list[tuple[str, Edit, str]]:
    """Every forgery: a name, the edit, and words of the error it must end in."""
    rows: list[tuple[str, Edit, str]] = []
    rows += [(f"function {name}", call(name), NO_CALL) for name in FUNCTIONS]
    rows += [(f"method {name!r}", method(name), NO_METHOD) for name in METHODS]
    rows += [(f"attribute {name!r}", reads(name), NO_READ) for name in ATTRIBUTES]
    rows += [(f"input {shown(name)}", renamed_input(name), f"{NO_INPUT}|a name") for name in NAMES]
    taken = ("self", "torch", "getattr")
    plain = [name for name in NAMES if name not in taken]
    rows += [(f"node {shown(name)}", renamed_node(name), NO_NAME) for name in plain]
    texts = [name for name in plain if isinstance(name, str)]
    rows += [(f"keyword {shown(name)}", keyword(name), NO_KEYWORD) for name in texts]
    rows += [(f"class {name!r}", cls(name), f"{NO_CLASS}|is not a Module") for name in CLASSES]
    rows += [(f"member {name}", attribute(name, 1), NO_ATTRIBUTE) for name in MEMBERS]
    rows += [
        (f"member function {name}", attribute(name, {"$function": "torch.relu"}), NO_ATTRIBUTE)
        for name in MEMBERS[:12]
    ]
    rows += [(f"path {shown(p)}", moved_module(p), f"{NO_PATH}|inside another|key") for p in PATHS]
    rows += [(f"value {shown(value)}", argument(value), why) for value, why in VALUES]
    rows += [(f"edit {index}: {why}", edit, why) for index, (edit, why) in enumerate(PUTS)]
    return rows


def shown(value: Any) -> str:
    """The start of a value, for the name of a test."""
    return repr(value)[:30]


# -- an ear for what runs ----------------------------------------------------------------------

_LISTENING: list[list[str]] = []
_DANGEROUS = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen")
_DANGEROUS += ("ctypes.dlopen", "socket.connect", "os.remove", "os.rename", "os.rmdir", "os.mkdir")
_DANGEROUS += ("shutil.rmtree", "pickle.find_class", "webbrowser.open", "os.symlink", "os.link")
_DANGEROUS += ("builtins.input",)
_INSTALLED = (sys.prefix, sys.base_prefix, str(Path(chop.__file__).parent))
"""Where programs lie that Python compiles when they are first imported."""
_hooked: list[bool] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if not _LISTENING or (arguments and "__pycache__" in str(arguments[0])):
        return  # Python keeps what it compiles of installed programs
    heard = None
    if event.startswith(_DANGEROUS):
        heard = f"{event} {arguments!r:.100}"
    elif event == "open" and _writes(arguments):
        heard = f"open for writing {arguments[0]!r:.100}"
    elif event == "compile" and not (
        str(arguments[1]).startswith(("<eval_with_key>", *_INSTALLED)) or _is_reading_annotations()
    ):
        heard = f"compile {arguments!r:.100}"
    elif event == "import" and arguments[0].split(".")[0] not in sys.modules:
        heard = f"import {arguments[0]}"
    if heard is not None:
        _LISTENING[-1].append(heard)


def _is_reading_annotations() -> bool:
    """Whether Python is reading the annotations of a class, which are text until then."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code is not typing.get_type_hints.__code__:
        frame = frame.f_back
    return frame is not None


def _writes(arguments: tuple[Any, ...]) -> bool:
    mode, flags = arguments[1], arguments[2] or 0
    by_mode = isinstance(mode, str) and any(letter in mode for letter in "wax+")
    return by_mode or bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _import_all() -> None:
    """What loading imports of the installed packages when it first needs it."""
    for name in (
        "chop.nn.quantized.functional",
        "chop.nn.quantized.convert",
        "chop.kernels.layers",
    ):
        importlib.import_module(name)
    transformers.CONFIG_MAPPING["bert"]()


def hear_events() -> None:
    """Listen to Python's audit events; silent outside the blocks of `listening`."""
    if not _hooked:
        _import_all()
        sys.addaudithook(_hear)  # cannot be removed
        _hooked.append(True)


@contextlib.contextmanager
def listening() -> Iterator[list[str]]:
    """What was run, written, loaded or imported inside the block, by Python's audit events."""
    hear_events()
    heard: list[str] = []
    _LISTENING.append(heard)
    try:
        yield heard
    finally:
        _LISTENING.remove(heard)
