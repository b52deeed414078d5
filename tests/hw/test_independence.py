"""The exact reference and the design share no code, although a component's file has both."""

import dis
import inspect
import types

from chop.hw.arith import golden
from chop.hw.arith.golden import Fixed
from chop.hw.design.component import COMPONENTS
from chop.hw.design.design import Design
from chop.hw.lower import LOWERINGS, Lowerer
from chop.hw.reference.exact_model import run_exact
from chop.hw.reference.exact_ops import EXACT_OPS


def reachable(roots):
    """The functions of `chop.hw` that may run when the functions and classes in `roots` do."""
    found, waiting = {}, list(roots)
    while waiting:
        thing = inspect.unwrap(waiting.pop()) if callable(waiting[-1]) else waiting.pop()
        if not str(getattr(thing, "__module__", "")).startswith("chop.hw"):
            continue
        name = f"{thing.__module__}.{thing.__qualname__}"
        if name not in found:
            found[name] = thing
            waiting += _parts(thing) if inspect.isclass(thing) else _used(thing)
    return {name for name, thing in found.items() if not inspect.isclass(thing)}


def _parts(cls):
    """The methods of a class and its bases."""
    members = [m for base in cls.__mro__ for m in vars(base).values()]
    members = [getattr(m, "fget", None) or getattr(m, "__func__", m) for m in members]
    return [*cls.__mro__[1:], *(m for m in members if isinstance(m, types.FunctionType))]


def _used(function):
    """What a function names: globals, attributes of modules, and what it closes over."""
    if not isinstance(function, types.FunctionType):
        return []
    names, attributes, codes = set(), set(), [function.__code__]
    while codes:
        steps = list(dis.get_instructions(codes.pop()))
        names |= {i.argval for i in steps if i.opname == "LOAD_GLOBAL"}
        attributes |= {i.argval for i in steps if i.opname in ("LOAD_ATTR", "LOAD_METHOD")}
        codes += [i.argval for i in steps if isinstance(i.argval, types.CodeType)]
    named = [function.__globals__[n] for n in names if n in function.__globals__]
    ours = [m for m in named if getattr(m, "__name__", "").startswith("chop.hw.")]
    modules = [m for m in ours if isinstance(m, types.ModuleType)]
    named += [vars(m)[n] for m in modules for n in attributes if n in vars(m)]
    named += [cell.cell_contents for cell in function.__closure__ or ()]
    return [n for n in named if inspect.isfunction(n) or inspect.isclass(n)]


def test_reference_and_design_share_no_function():
    reference = reachable([*EXACT_OPS.values(), run_exact])
    lowerings = [lowering.lower for lowering in LOWERINGS.values()]
    design = reachable([*lowerings, *COMPONENTS.values(), Lowerer, Design])
    assert {"chop.hw.reference.exact.product", "chop.hw.reference.exact.quantized"} <= reference
    linear = "chop.hw.library.fixed_linear.folded_product.Linear.golden"
    assert {"chop.hw.arith.golden.cast", linear} <= design
    assert reference & design == set()


def test_a_function_that_both_use_would_be_found():
    def cheat(arguments):
        return golden.cast(arguments["input"], 0, Fixed(8))

    cheat.__module__ = "chop.hw.library.cheat"
    assert "chop.hw.arith.golden.cast" in reachable([cheat])
