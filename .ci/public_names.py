"""List the public names of a checkout from its source, without importing it.

`python .ci/public_names.py` prints them, and with a path those of another checkout. `--write` adds
new names to `tests/public_names.txt`. It removes none: delete a line by hand when the changelog
names what is gone.

A public name is one that a package or module exports (`__all__`, or `import x as x` in a package),
or a function or class of a module in the API reference (`docs/api`).
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "public_names.txt"
PACKAGES = ("chop", "graph", "mase")
BUILTINS = {"__builtins__": {"list": list, "sorted": sorted}}
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Checkout:
    """Public names of the modules under `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        """Return the dotted paths of all public names, sorted."""
        exported = {f"{m}.{n}" for m in self._modules() for n in self.exports(m)}
        documented = {f"{m}.{n}" for m in self._documented() for n in self._definitions(m)}
        return sorted(exported | documented)

    def exports(self, module: str) -> list[str]:
        """Return the names that `module` exports."""
        tree = self._tree(module)
        value = _assigned(tree, "__all__")
        if value is not None:
            return list(self._value(value, tree))
        is_package = self._file(module).name == "__init__.py"
        return list(self._reexports(tree)) if is_package else []

    def _modules(self) -> Iterator[str]:
        for package in PACKAGES:
            for file in sorted((self.root / "src" / package).rglob("*.py")):
                parts = file.relative_to(self.root / "src").with_suffix("").parts
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def _documented(self) -> Iterator[str]:
        for page in sorted((self.root / "docs" / "api").glob("*.md")):
            entries = re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.M)
            yield from (entry for entry in entries if self._file(entry).exists())

    def _definitions(self, module: str) -> Iterator[str]:
        for node in self._tree(module).body:
            if isinstance(node, Definition) and not node.name.startswith("_"):
                yield node.name

    def _reexports(self, tree: ast.Module) -> Iterator[str]:
        """Yield the names of `from m import x as x` and of `from m import *`."""
        for node in ast.walk(tree):
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                if alias.name == "*":
                    yield from self.exports(str(node.module))
                elif alias.name == alias.asname:
                    yield alias.name

    def _value(self, expression: ast.expr, tree: ast.Module) -> Any:
        """Return the value of a constant expression of the module `tree`."""
        known: dict[str, Any] = {}
        for node in ast.walk(expression):
            if isinstance(node, ast.Name) and node.id not in known:
                value = _assigned(tree, node.id)
                known[node.id] = (
                    self._value(value, tree) if value is not None else self._imported(node.id, tree)
                )
        known = {name: value for name, value in known.items() if value is not None}
        return eval(compile(ast.Expression(expression), "<__all__>", "eval"), BUILTINS, known)

    def _imported(self, name: str, tree: ast.Module) -> Any:
        """Return an object with the `__all__` of the module that `tree` imports as `name`."""
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom | ast.Import):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        owner = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                        return type(name, (), {"__all__": self.exports(owner + alias.name)})
        return None

    def _file(self, module: str) -> Path:
        place = self.root / "src" / Path(*module.split("."))
        package = place / "__init__.py"
        return package if package.exists() else place.with_suffix(".py")

    def _tree(self, module: str) -> ast.Module:
        return _parsed(self._file(module))


@functools.cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _assigned(tree: ast.Module, name: str) -> ast.expr | None:
    """Return the expression that a module assigns to `name`; None if it does not."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == [name]:
            return node.value
    return None


def main(arguments: list[str]) -> None:
    """Print the names of a checkout, or add new ones to the list."""
    if arguments == ["--write"]:
        names = {*LIST.read_text(encoding="utf-8").split(), *Checkout(ROOT).names()}
        LIST.write_text("\n".join(sorted(names)) + "\n", encoding="utf-8")
    else:
        print(*Checkout(Path(*arguments) if arguments else ROOT).names(), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
