"""The manifest of emitted hardware, and the check that its files are safe to run.

RTL is a program: `$system` in it runs a command. A folder is simulated or synthesised only if every
file in it is as its manifest lists it, the components are the library's, and the top module only
connects them. Anything else needs the caller's trust. A simulator in the folder runs only if this
user built it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from chop.errors import HardwareError
from chop.files import cache_dir, read_json, read_text

MANIFEST = "manifest.json"
FOLDERS = ("rtl", "mem", "test", "axi", "board", "reload")
SEALED = (*(f"{folder}/" for folder in FOLDERS), "design.json", "component.xml")
"""Files that the manifest lists: all that a tool reads of a project."""
ADVICE = "If you trust it, say so: --trust, or simulate(…, trust=True)."
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_TOKEN = re.compile(
    r"\s+|//[^\n]*|`default_nettype (?:none|wire)\b|\"mem/[A-Za-z0-9_.-]+\.mem\""
    r"|[0-9]*'s?[bdh][0-9a-f]+|[0-9]+'|'0|[0-9]+|[A-Za-z_][A-Za-z0-9_]*|[][#(){},;:.=*&+-]",
    re.ASCII,
)


# -- the manifest ----------------------------------------------------------------------------


def seal(directory: Path, files: Mapping[str, str], removed: Iterable[str] = ()) -> None:
    """Update the manifest of a hardware directory with written and removed files."""
    written = {n: _hash(t.encode()) for n, t in files.items() if n.startswith(SEALED)}
    dropped = {name for name in removed if name.startswith(SEALED)}
    if not written and not dropped:
        return
    path = directory / MANIFEST
    try:
        before = _read_manifest(path)
    except HardwareError:  # none yet, or unreadable: its files are not vouched for
        before = {}
    entries = {name: digest for name, digest in before.items() if name not in dropped}
    text = json.dumps({"sha256": dict(sorted({**entries, **written}.items()))}, indent=1) + "\n"
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)


def _read_manifest(path: Path) -> dict[str, str]:
    manifest = read_json(path, HardwareError)
    listed = manifest.get("sha256") if isinstance(manifest, dict) else None
    if not isinstance(listed, dict) or not all(isinstance(v, str) for v in listed.values()):
        raise HardwareError(f"{path}: not a manifest of emitted files. {ADVICE}")
    return listed


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- the check -------------------------------------------------------------------------------


def require_ours(
    directory: Path, top: str, library: Mapping[str, Path], benches: Iterable[Path]
) -> None:
    """Raise unless the hardware directory has the files that this package emits, unchanged."""
    listed = _read_manifest(directory / MANIFEST)
    files = {name: path for name, path in _files(directory) if name.startswith(SEALED)}
    for name in sorted(listed.keys() | files.keys()):
        _check_file(directory, name, listed.get(name), files.get(name))
    emitted = {bench.read_bytes() for bench in benches}
    for name, path in files.items():
        if name.endswith(".sv"):
            _check_source(path, top, library)
        elif name.startswith("rtl/"):
            raise HardwareError(f"{path}: not a source this package emits. {ADVICE}")
        elif name.endswith(".py") and path.read_bytes() not in emitted:
            raise HardwareError(f"{path}: not the program this release emits. {ADVICE}")


def _files(directory: Path) -> list[tuple[str, Path]]:
    within = [directory, *(directory / folder for folder in FOLDERS)]
    paths = [p for folder in within if folder.is_dir() for p in sorted(folder.iterdir())]
    files = [p for p in paths if p.name != "__pycache__" and not p.is_dir()]
    return [(str(p.relative_to(directory)), p) for p in files]


def _check_file(directory: Path, name: str, digest: str | None, path: Path | None) -> None:
    shown = directory / name
    if path is None:
        raise HardwareError(f"{shown}: listed in the manifest, and not there. Emit it again.")
    if digest is None:
        raise HardwareError(f"{shown}: not among the files that were emitted. {ADVICE}")
    if path.is_symlink() or not path.is_file():
        raise HardwareError(f"{shown}: not a plain file. {ADVICE}")
    if _hash(path.read_bytes()) != digest:
        raise HardwareError(f"{shown}: changed since it was emitted. {ADVICE}")


def _check_source(path: Path, top: str, library: Mapping[str, Path]) -> None:
    text = read_text(path, HardwareError)
    if path.stem in (top, f"{top}_axi", f"{top}_board") and path.stem not in library:
        check_top(text, path, library)
    elif path.stem not in library:
        raise HardwareError(
            f"{path}: '{path.stem}' is no component of the library. Add yours with "
            f"chop.hw.sim.emit.add_library. {ADVICE}"
        )
    elif text != (library[path.stem] / path.name).read_text():
        raise HardwareError(f"{path}: not the library's '{path.stem}' of this release. {ADVICE}")


def check_top(text: str, path: Path, library: Mapping[str, Path]) -> None:
    """Raise unless a top module only connects components: no task, macro, string or other module.

    An emitted top has only names, numbers, `assign` and instances of the library.
    """
    position, words = 0, []
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or _is_directive(match[0]):
            line = text.count("\n", 0, position) + 1
            raise HardwareError(
                f"{path}, line {line}: '{text[position : position + 20].strip()}' is nothing that "
                f"an emitted top module holds. {ADVICE}"
            )
        position = match.end()
        words += [match[0]] if match[0][0].isalpha() or match[0] in "#(" else []
    for kind, after in zip(words, [*words[1:], ""], strict=True):
        if after == "#" and kind not in library and words[words.index(kind) - 1] != "module":
            raise HardwareError(f"{path}: '{kind}' is no component of the library. {ADVICE}")


def _is_directive(token: str) -> bool:
    """Return whether a token is a comment with orders to tools, or a forbidden word."""
    words = token[2:].split()
    is_order = token.startswith("//") and bool(words) and words[0] in ("verilator", "synopsys")
    return is_order or token in _FORBIDDEN


_FORBIDDEN = frozenset(
    """import export bind program initial final function task checker include define package class
    always force config primitive""".split()  # noqa: SIM905
)


def check_names(record: Any, path: Path) -> None:
    """Raise unless the names in a `design.json`, which go into C++, are plain identifiers."""
    is_plain = isinstance(record, dict) and all(
        isinstance(record.get(side), dict) for side in ("inputs", "outputs")
    )
    if not is_plain:
        raise HardwareError(f"{path}: expected name, cycles, inputs and outputs.")
    stages = record.get("stages", [])
    is_list = isinstance(stages, list) and all(isinstance(s, dict) for s in stages)
    named = [stage.get("name") for stage in stages] if is_list else [stages]
    for name in (record.get("name"), *record["inputs"], *record["outputs"], *named):
        if not isinstance(name, str) or len(name) > 200 or not IDENTIFIER.fullmatch(name):
            raise HardwareError(f"{path}: {name!r:.80} is not the name of a module, port or stage.")
    if type(record.get("cycles")) is not int or not 0 < record["cycles"] < 1 << 40:
        raise HardwareError(f"{path}: cycles is {record.get('cycles')!r:.80}.")


# -- programs --------------------------------------------------------------------------------


def is_built_here(program: Path) -> bool:
    """Return whether this user built `program` as it is, by a note in the user's cache."""
    return program.is_file() and _note(program).exists()


def note_built(program: Path) -> None:
    """Note that this user built `program`."""
    note = _note(program)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.touch()


def _note(program: Path) -> Path:
    return cache_dir() / "built" / _hash(program.read_bytes())
