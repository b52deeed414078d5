"""Files of a proof: the harness, the modules that it uses, and the memories."""

from __future__ import annotations

import re
from collections.abc import Mapping

from chop.hw.design.claims import Proof
from chop.hw.design.component import OWN_SOURCES, rtl_sources
from chop.hw.design.folders import INTERFACES
from chop.hw.proofs.harness_maker import SHARED, harness_text

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def question_files(proof: Proof) -> dict[str, str]:
    """Return the texts of a proof by file name: exactly what the prover reads.

    Comments and blank lines are left out, so that editing them does not change a proof.
    """
    modules = _modules(proof)
    harness = harness_text(proof, modules[proof.module])
    used = _used_modules(harness, modules)
    files = {"harness.sv": harness, **{f"{name}.sv": modules[name] for name in used}}
    memories = {
        name: "".join(f"{word:x}\n" for word in words) for name, words in proof.files.items()
    }
    return {**{name: _bare(text) for name, text in files.items()}, **memories}


def _modules(proof: Proof) -> dict[str, str]:
    """Return the SystemVerilog of every module by name, with the edits of `proof`."""
    own = {name: folder / f"{name}.sv" for name, folder in OWN_SOURCES.items()}
    shared = {path.stem: path for room in (SHARED, INTERFACES) for path in room.glob("*.sv")}
    modules = {name: path.read_text() for name, path in {**shared, **rtl_sources(), **own}.items()}
    for edit in proof.edits:
        modules[edit.module] = edit.apply(modules[edit.module])
    return modules


def _used_modules(text: str, modules: Mapping[str, str]) -> list[str]:
    """Return the modules that `text` names, directly or through others, sorted."""
    used: set[str] = set()
    texts = [text]
    while texts:
        fresh = set(re.findall(r"\w+", _COMMENT.sub("", texts.pop()))) & modules.keys() - used
        used |= fresh
        texts += [modules[name] for name in fresh]
    return sorted(used)


def _bare(text: str) -> str:
    """Return `text` without comments, blank lines and trailing spaces."""
    lines = (line.rstrip() for line in _COMMENT.sub("", text).splitlines())
    return "".join(f"{line}\n" for line in lines if line)
