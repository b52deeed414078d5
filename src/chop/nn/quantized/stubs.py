"""The names of the generated layers and functions, written for type checkers and editors.

`python -m chop.nn.quantized.stubs` writes a `.pyi` beside each generated module, and the module
itself where it is missing. A test holds that the files say what the tables say.
"""

from __future__ import annotations

from pathlib import Path

from chop.ir.ops import OPS
from chop.nn.quantized.function import QUANTIZED_FUNCTIONS, function_name
from chop.nn.quantized.layer import QUANTIZED_LAYERS, layer_name
from chop.nn.quantizers import FORMATS

HERE = Path(__file__).parent

_LAYER_FILE = '''"""`{layer}` in every number format: `{first}` …"""

from __future__ import annotations

from chop.nn.quantized.layer import layer_classes

globals().update(layer_classes(__name__))
'''

_LAYER_STUB = """from torch import nn

from chop.nn.quantized.layer import QuantizedModule

"""

_FUNCTION_STUB = """from chop.nn.quantized.function import QuantizedFunction

quantized_func_map: dict[str, QuantizedFunction]

"""


def layer_file(name: str) -> str:
    """The module of the op `name`."""
    base = OPS[name].modules[0]
    first = layer_name(base, next(iter(FORMATS.values())))
    return _LAYER_FILE.format(layer=f"nn.{base.__name__}", first=first)


def layer_stub(name: str) -> str:
    """The stub of the op `name`: one line per class."""
    lines = [
        f"class {layer_name(base, form)}(QuantizedModule, nn.{base.__name__}): ...\n"
        for base in OPS[name].modules
        for form in FORMATS.values()
    ]
    return _LAYER_STUB + "".join(lines)


def function_stub() -> str:
    """The stub of the functions: one line per function."""
    lines = [
        f"{function_name(OPS[name], form)}: QuantizedFunction\n"
        for name in QUANTIZED_FUNCTIONS
        for form in FORMATS.values()
    ]
    return _FUNCTION_STUB + "".join(lines)


def files() -> dict[Path, str]:
    """Every generated file and its text."""
    modules = {HERE / "modules" / f"{name}.py": layer_file(name) for name in QUANTIZED_LAYERS}
    stubs = {HERE / "modules" / f"{name}.pyi": layer_stub(name) for name in QUANTIZED_LAYERS}
    return modules | stubs | {HERE / "functional" / "__init__.pyi": function_stub()}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
