"""Compilation of C++ sources, with the libraries in the user's cache, for ctypes.

Plain C functions (`extern "C"`) in a header-free file compile in under a second. A call through
ctypes costs microseconds. Neither a build step at install nor a torch extension is needed.
Without a compiler, or with MASE_NATIVE=0, `load` returns None and the caller uses its PyTorch path.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import itertools
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from chop.files import cache_dir
from chop.log import get_logger

_log = get_logger(__name__)

# Exact arithmetic: no contraction into fused multiply-add and no fast-math. The two -fno flags only
# drop errno and exception flags, so that rint and others vectorise without changing a value.
BASE_FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
)
TUNING = (("-march=native", "-mtune=native"), ("-march=native",), ())
"""Flag sets to try in turn: some compilers do not support the first ones."""
COMPILERS = ("c++", "g++", "clang++")


@functools.cache
def load(source: Path, *flags: tuple[str, ...]) -> ctypes.CDLL | None:
    """Return the library built from `source`, or None and log a warning if that fails.

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
            problem = str(getattr(error, "stderr", None) or error).strip()[-500:]
    _log.warning("%s: cannot be built; using the PyTorch path. %s", source.name, problem)
    return None


def find_compiler() -> str | None:
    """Return the path of the C++ compiler: $CXX, or else the first of `COMPILERS` on PATH."""
    own = os.environ.get("CXX")
    names: Sequence[str] = (own,) if own else COMPILERS
    return next((path for path in map(shutil.which, names) if path), None)


def openmp_flags() -> tuple[str, ...]:
    """Return the flags for OpenMP on the runtime that this process has loaded, if any.

    PyTorch ships its own OpenMP runtime, sometimes under a private name. A second runtime would
    have a second pool of threads, whose idle threads spin against the first.
    """
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    paths = {line.split(maxsplit=5)[5] for line in lines if "/" in line}
    loaded = sorted(p for p in paths if re.match(r"lib(gomp|iomp5|omp)[-.]", Path(p).name))
    return (*loaded[:1], "-Wl,--as-needed", "-fopenmp")


def tune_allocator() -> bool:
    """Keep freed memory in the process; return True if the C library can.

    By default glibc returns large blocks at once, so that each large tensor needs new pages. Use
    it in programs that own their process: memory use does not shrink after its peak.
    """
    mmap_max, trim_threshold = -4, -1  # M_MMAP_MAX and M_TRIM_THRESHOLD in malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    return bool(mallopt(mmap_max, 0) and mallopt(trim_threshold, -1))


def return_freed_memory() -> bool:
    """Give memory that was freed back to the system; return True if the C library did.

    glibc keeps what lies between blocks that are in use. Reading a model leaves a fifth of its size
    there, which later work rarely fills.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    return bool(trim(0))


def _built(source: Path, command: list[str]) -> Path:
    """Return the library that `command` builds from `source`; compile it if the cache has none."""
    folder = _writable_folder()
    target = folder / f"{source.stem}-{_fingerprint(source, command)}.so"
    if not target.exists():
        with _locked(target.with_suffix(".lock")):
            if not target.exists():
                _compile(command, target)
    return target


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, so that one process compiles while others wait for its library."""
    with path.open("w") as file:
        with contextlib.suppress(OSError):  # without file locks two may compile: renames are atomic
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _compile(command: list[str], target: Path) -> None:
    """Run `command` for `target`: a private name, then an atomic rename."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        fresh = Path(scratch) / target.name
        subprocess.run([*command, "-o", str(fresh)], check=True, capture_output=True, text=True)
        fresh.replace(target)


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
    """Return the source and the local files that it includes."""
    text = source.read_text()
    included = re.findall(r'^#include "(.+)"', text, re.MULTILINE)
    return "\0".join([text, *(_text(source.parent / name) for name in included)])


def _fingerprint(source: Path, command: list[str]) -> str:
    flags = [word for word in command if word != str(source)]  # a library fits every checkout
    parts = [_text(source), *flags, _compiler_version(command[0]), _processor()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


@functools.cache
def _compiler_version(compiler: str) -> str:
    answer = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True)
    return answer.stdout


@functools.cache
def _processor() -> str:
    """Return the traits that -march=native depends on: machines may share a home folder."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else platform.processor()
    traits = re.findall(r"^(?:flags|Features|model name|CPU part)\s*:.*$", text, re.MULTILINE)
    return "\n".join([platform.machine(), *sorted(set(traits))])
