"""Short modules, short functions, names used once, and no private name of another package."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from sources import nodes_of, tree_of

SOURCE = Path(__file__).parents[1] / "src"
LONGEST_MODULE, LONGEST_FUNCTION = 500, 60
TEXTS = {file: file.read_text() for file in sorted(SOURCE.glob("*/**/*.py"))}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def place(file: Path) -> str:
    return str(file.relative_to(SOURCE))


def package(file: Path) -> str:
    return ".".join(file.relative_to(SOURCE).parent.parts)


def length(function: Function) -> int:
    """Lines of a function without those of its docstring."""
    first = function.body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    text = first.end_lineno - first.lineno + 1 if is_text else 0
    return function.end_lineno - function.lineno + 1 - text


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_imports(tree: ast.Module, own: str) -> Iterator[str]:
    """What is imported, or read of an imported module, that is another package's own."""
    modules: dict[str, str] = {}
    for node in nodes_of(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            modules |= {a.asname or a.name: n for a, n in zip(node.names, names, strict=True)}
            yield from (n for n in names if any(map(is_private, n.split("."))) and foreign(n, own))
    for node in nodes_of(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = modules.get(node.value.id, "")
            is_module = owner.rpartition(".")[2].islower()
            if is_module and is_private(node.attr) and foreign(f"{owner}.{node.attr}", own):
                yield f"{owner}.{node.attr}"


OURS = tuple(folder.name for folder in SOURCE.iterdir() if folder.is_dir())


def foreign(name: str, own: str) -> bool:
    """Whether the module that has `name` is in another package than `own`."""
    module = name.rpartition(".")[0]
    return module != own and module.rpartition(".")[0] != own


@pytest.fixture(scope="module")
def trees():
    return {file: tree_of(file) for file in TEXTS}


def test_no_module_is_too_long():
    lengths = {place(file): len(text.splitlines()) for file, text in TEXTS.items()}
    assert {name: n for name, n in lengths.items() if n > LONGEST_MODULE} == {}


def test_no_function_is_too_long(trees):
    functions = {
        f"{place(file)}: {node.name}": length(node)
        for file, tree in trees.items()
        for node in nodes_of(tree)
        if isinstance(node, Function)
    }
    assert {name: n for name, n in functions.items() if n > LONGEST_FUNCTION} == {}


def test_no_private_name_is_imported_from_another_package(trees):
    found = {
        place(file): sorted(set(private_imports(tree, package(file))))
        for file, tree in trees.items()
    }
    assert {file: names for file, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "text",
    [
        "from chop.ir.ops.table import _BY_MODULE",
        "from chop.ir.ops import table\ntable._BY_MODULE",
        "from chop.ir._hidden import thing",
    ],
)
def test_a_private_name_is_seen(text):
    assert list(private_imports(ast.parse(text), "chop.passes")) != []
    assert list(private_imports(ast.parse("from chop.ir.ops.table import _x"), "chop.ir.ops")) == []


def modules_by_string(tree: ast.Module) -> Iterator[str]:
    """Yield the names of modules of ours that are imported by a string."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and node.args and "import_module" in ast.unparse(node.func):
            name = ast.unparse(node.args[0]).lstrip("f").strip("'\"")
            if name.split(".")[0] in OURS:
                yield name


def test_no_module_of_ours_is_loaded_by_a_string(trees):
    """A package's own `__init__` may load its submodules lazily: what it loads lies below it."""
    found = {
        place(file): list(modules_by_string(tree))
        for file, tree in trees.items()
        if file.name != "__init__.py"
    }
    assert {file: names for file, names in found.items() if names} == {}


def test_a_module_loaded_by_a_string_is_seen():
    text = "importlib.import_module('chop.report')\nimport_module(f'chop.search.{kind}')"
    assert list(modules_by_string(ast.parse(text))) == ["chop.report", "chop.search.{kind}"]
    assert list(modules_by_string(ast.parse("importlib.import_module('torch._dynamo')"))) == []


CONVENTIONS = {
    "__init__.py": "a package",
    **dict.fromkeys(
        ("area.py", "laws.svh", "mutants.toml", "proof.py", "proof.toml"),
        "a file of a component's folder, see chop.hw.design.folders",
    ),
}
"""File name that `chop` has in many folders -> the reason."""
TWICE = {
    **dict.fromkeys(
        ("emit.py", "explain.py", "prune.py", "quantize.py", "simulate.py", "synth.py", "train.py"),
        "a command, and the module that does the same for Python programs",
    ),
    "lora.py": "the command, and the layer that it inserts",
    "Integer": "public in chop.nn.quantizers (a format) and in chop.search (a dimension)",
}
"""File or class name that `chop` has in two places -> the reason."""


def repeated(names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the places of each public name that is used too often."""
    places: dict[str, list[str]] = {}
    for name, where in names:
        places.setdefault(name, []).append(where)
    return {
        name: found
        for name, found in places.items()
        if len(found) > 1 + (name in TWICE) and name not in CONVENTIONS and not is_private(name)
    }


def classes(trees: dict[Path, ast.Module]) -> Iterator[tuple[str, str]]:
    """Yield name and file of every class of `chop`."""
    for file, tree in trees.items():
        if package(file).split(".")[0] == "chop":
            yield from (
                (n.name, place(file)) for n in nodes_of(tree) if isinstance(n, ast.ClassDef)
            )


def files() -> Iterator[tuple[str, str]]:
    """Yield name and place of every source file of `chop`."""
    for file in sorted((SOURCE / "chop").rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            yield file.name, place(file)


def test_no_class_name_is_used_twice(trees):
    assert repeated(classes(trees)) == {}


def test_no_file_name_is_used_twice():
    assert repeated(files()) == {}


def test_every_exception_is_needed(trees):
    names = [name for name, _ in (*classes(trees), *files())]
    assert [name for name in (*CONVENTIONS, *TWICE) if names.count(name) < 2] == []


def test_a_repeated_name_is_seen():
    names = [(name, file) for name in ("Cost", "_Cost", "lora.py", "area.py") for file in "ab"]
    assert repeated([*names, ("Plan", "a")]) == {"Cost": ["a", "b"]}
    assert repeated([*names, ("lora.py", "c"), ("area.py", "c")]).keys() == {"Cost", "lora.py"}
