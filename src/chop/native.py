"""Compile a C++ source once, keep the library in the user's cache, load it with ctypes.

Plain C functions (`extern "C"`) in a header-free file build in under a second, and a call through
ctypes costs microseconds, so speed needs neither a build step at install nor a torch extension.
Without a compiler, or with MASE_NATIVE=0, `load` answers None and the caller uses its PyTorch path.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from chop.files import cache_dir
from chop.log import get_logger

_log = get_logger(__name__)

# Exact arithmetic: no contraction into fused multiply-add and no fast-math. The two -fno flags only
# drop errno and exception flags, which lets rint and friends vectorise without changing a value.
BASE_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
)
TUNING = (("-march=native", "-mtune=native"), ("-march=native",), ())
"""Flag sets to try in turn: some compilers do not know the first ones."""
COMPILERS = ("c++", "g++", "clang++")


@functools.cache
def load(source: Path, *flags: tuple[str, ...]) -> ctypes.CDLL | None:
    """The library built from `source`, or None where it cannot be built (said once in the log).

    Several sets of `flags` are tried in turn, as in `load(source, openmp_flags(), ())`.
    """
    if os.environ.get("MASE_NATIVE", "1") == "0":
        return None
    compiler = find_compiler()
    if compiler is None:
        _log.warning("%s: no C++ compiler found; using the PyTorch path.", source.name)
        return None
    problem = ""
    for chosen, tuning in itertools.product(flags or ((),), TUNING):
        command = [compiler, *BASE_FLAGS, *tuning, str(source), *chosen]
        try:
            return ctypes.CDLL(str(_built(source, command)))
        except (OSError, subprocess.SubprocessError) as error:
            problem = _explain(error)
    _log.warning("%s: cannot be built; using the PyTorch path. %s", source.name, problem)
    return None


def find_compiler() -> str | None:
    """Path of the C++ compiler: $CXX if set, else the first of `COMPILERS` on the path."""
    asked = os.environ.get("CXX")
    names: Sequence[str] = (asked,) if asked else COMPILERS
    return next((path for path in map(shutil.which, names) if path), None)


def openmp_flags() -> tuple[str, ...]:
    """Flags that build with OpenMP on the runtime this process has already loaded, if any.

    PyTorch ships its own OpenMP runtime, sometimes under a private name. A second runtime would
    bring a second pool of threads whose idle members spin against the first.
    """
    loaded = _loaded_libraries(r"lib(gomp|iomp5|omp)[-.]")
    return (*loaded[:1], "-Wl,--as-needed", "-fopenmp")


def tune_allocator() -> bool:
    """Keep freed memory in the process; True where the C library can.

    By default glibc gives large blocks back at once, so each large tensor pays for fresh pages
    again. For programs that own their process: memory use does not shrink after its peak.
    """
    mmap_max, trim_threshold = -4, -1  # names of glibc's settings
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    return bool(mallopt(mmap_max, 0) and mallopt(trim_threshold, -1))


def _loaded_libraries(pattern: str) -> list[str]:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    paths = {line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if "/" in line}
    return sorted(p for p in paths if re.match(pattern, Path(p).name))


def _built(source: Path, command: list[str]) -> Path:
    folder = _writable_folder()
    target = folder / f"{source.stem}-{_fingerprint(source, command)}.so"
    if not target.exists():
        # A private name, then an atomic rename: two processes may build the same file at once.
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            fresh = Path(scratch) / target.name
            subprocess.run([*command, "-o", str(fresh)], check=True, capture_output=True, text=True)
            fresh.replace(target)
    return target


def _writable_folder() -> Path:
    for folder in (cache_dir(), Path(tempfile.gettempdir()) / f"mase-{os.getuid()}"):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid():
            return folder
    raise OSError(f"no folder to keep built libraries in; set MASE_CACHE_DIR (tried {cache_dir()})")


def _text(source: Path) -> str:
    """The source, and the files of ours that it includes."""
    text = source.read_text()
    included = re.findall(r'^#include "(.+)"', text, re.MULTILINE)
    return "\0".join([text, *(_text(source.parent / name) for name in included)])


def _fingerprint(source: Path, command: list[str]) -> str:
    parts = [_text(source), *command, _compiler_version(command[0]), _processor()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


@functools.cache
def _compiler_version(compiler: str) -> str:
    answer = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True)
    return answer.stdout


@functools.cache
def _processor() -> str:
    """What -march=native depends on: a home folder may be shared by unlike machines."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else platform.processor()
    traits = re.findall(r"^(?:flags|Features|model name|CPU part)\s*:.*$", text, re.MULTILINE)
    return "\n".join([platform.machine(), *sorted(set(traits))])


def _explain(error: Exception) -> str:
    said = getattr(error, "stderr", None) or str(error)
    return str(said).strip()[-500:]
