"""Compilation of CUDA C++ at run time, and launches of its kernels, through ctypes.

torch's CUDA packages contain NVIDIA's run-time compiler, and a machine with a GPU has the driver,
so that no toolkit is needed. Header-free sources compile in about a second.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path
from typing import Any

import torch

from chop.errors import ChopError

PROGRAMMATIC_STREAM_SERIALIZATION = 6
"""Driver's number of the attribute that a kernel may start before the previous one ends."""
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
"""Driver's number of the attribute for the shared memory of a kernel."""
MOST_CONFIGS = 256
"""Launch configurations of a kernel that are cached."""
INVALID_CONTEXT = 201
"""Driver's error number if no context is current."""
UINT8, BFLOAT16 = 0, 9
"""Driver's numbers of element types in a tensor map."""
SWIZZLES = {16: 0, 32: 1, 64: 2, 128: 3}
"""Bytes of a row -> driver's number of the permutation of its 16-byte units."""
PROMOTE_256 = 3
"""Driver's number of the setting that fetches 256 bytes at a time."""
OPTIONS = ("--fmad=false",)
"""No contraction into fused multiply-add, because the definitions round twice."""


class _Attribute(ctypes.Structure):
    _fields_ = (
        ("name", c_int),
        ("padding", c_int),
        ("value", c_int),
        ("rest", c_int * 15),  # the driver's value is a union of 64 bytes
    )


class _Config(ctypes.Structure):
    _fields_ = (
        *((f"grid_{axis}", c_uint) for axis in "xyz"),
        *((f"block_{axis}", c_uint) for axis in "xyz"),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", c_uint),
    )


_EARLY = ctypes.pointer(_Attribute(PROGRAMMATIC_STREAM_SERIALIZATION, 0, 1))


class CudaError(ChopError):
    """Error of the run-time compiler or the driver."""


class TensorMap(ctypes.Structure):
    """Description of a matrix for the copy engine; an argument of a kernel, by value."""

    _fields_ = (("opaque", ctypes.c_uint64 * 16),)


@functools.lru_cache(4096)
def tensor_map(
    pointer: int, kind: int, shape: tuple[int, int], row_bytes: int, box: tuple[int, int]
) -> TensorMap:
    """Describe a matrix (rows, columns) in memory, of which boxes (rows, columns) are copied.

    The rows of a box are 16, 32, 64 or 128 bytes long, and are permuted accordingly. Results are
    cached, because torch reuses memory.
    """
    aligned: TensorMap = _aligned(TensorMap, 64)
    (rows, columns), (box_rows, box_columns) = shape, box
    box_bytes = row_bytes // columns * box_columns
    status = _driver().cuTensorMapEncodeTiled(
        byref(aligned),
        kind,
        2,
        c_void_p(pointer),
        (ctypes.c_uint64 * 2)(columns, rows),
        (ctypes.c_uint64 * 1)(row_bytes),
        (c_uint * 2)(box_columns, box_rows),
        (c_uint * 2)(1, 1),
        0,
        SWIZZLES[box_bytes],
        PROMOTE_256,
        0,
    )
    _check(status, f"describe a matrix of {rows} x {columns}")
    return aligned


def _aligned(kind: Any, alignment: int) -> Any:
    """Return a structure at an address that is a multiple of `alignment`."""
    buffer = (ctypes.c_char * (ctypes.sizeof(kind) + alignment))()
    return kind.from_buffer(buffer, -ctypes.addressof(buffer) % alignment)


class Function:
    """Kernel on the current device; `launch` queues it on a stream.

    With `starts_early` it may start before the previous kernel ends, and waits for that itself.
    """

    def __init__(
        self, image: bytes, name: str, shared_bytes: int = 0, *, starts_early: bool = False
    ) -> None:
        driver, self._early = _driver(), int(starts_early)
        self._configs: dict[tuple[tuple[int, int, int], int, int], Any] = {}
        self._module, self._handle, self._shared_bytes = c_void_p(), c_void_p(), shared_bytes
        loaded = _in_context(lambda: driver.cuModuleLoadData(byref(self._module), image))
        _check(loaded, f"load {name}")
        status = driver.cuModuleGetFunction(byref(self._handle), self._module, name.encode())
        _check(status, f"find {name}")
        allowed = driver.cuFuncSetAttribute(
            self._handle, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes
        )
        _check(allowed, f"give {name} {shared_bytes} bytes of shared memory")

    def launch(
        self, grid: tuple[int, int, int], threads: int, stream: int, arguments: Sequence[Any]
    ) -> None:
        """Queue the kernel; `arguments` are ctypes values and must match its signature."""
        Launch(self, grid, threads, arguments)(stream)

    def queue(self, config: Any, pointers: ctypes.Array[c_void_p]) -> None:
        """Queue the kernel with the driver's structures for the launch and the arguments."""
        arguments = (config, self._handle, pointers, None)
        launch = _driver().cuLaunchKernelEx
        status = launch(*arguments)
        if status == INVALID_CONTEXT:
            status = _in_context(lambda: launch(*arguments))
        _check(status, "launch a kernel")

    def config(self, grid: tuple[int, int, int], threads: int, stream: int) -> Any:
        """Return the driver's structure of a launch; it is cached, because creating it is slow."""
        key = (grid, threads, stream)
        if key not in self._configs:
            if len(self._configs) == MOST_CONFIGS:
                self._configs.clear()
            config = _Config(*grid, threads, 1, 1, self._shared_bytes, stream, _EARLY, self._early)
            self._configs[key] = ctypes.pointer(config)
        return self._configs[key]


class Launch:
    """Repeatable launch; `give` replaces an argument. For one thread at a time."""

    def __init__(
        self, kernel: Function, grid: tuple[int, int, int], threads: int, arguments: Sequence[Any]
    ) -> None:
        self._kernel, self._sizes, self._arguments = kernel, (grid, threads), list(arguments)
        self._pointers = (c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        self._stream, self._config = -1, None

    def give(self, place: int, argument: Any) -> None:
        """Replace the argument number `place`; the driver reads it at each launch."""
        self._arguments[place] = argument
        self._pointers[place] = ctypes.addressof(argument)

    def __call__(self, stream: int) -> None:
        """Queue the kernel."""
        if stream != self._stream:
            self._stream, self._config = stream, self._kernel.config(*self._sizes, stream)
        self._kernel.queue(self._config, self._pointers)


def architecture(device: torch.device) -> str:
    """Return the compiler's name of a GPU, such as "sm_90"."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def made_current(device: torch.device) -> AbstractContextManager[object]:
    """Return a context that makes `device` current, if it is not."""
    if device.index == torch._C._cuda_getDevice():
        return nullcontext()
    return torch.cuda.device(device)


def raw_stream(device: torch.device) -> int:
    """Return the handle of the current stream, without torch's object."""
    return int(torch._C._cuda_getCurrentRawStream(device.index))


def is_available() -> bool:
    """Return True if compiler and driver can be loaded."""
    try:
        return bool(_compiler() and _driver())
    except CudaError:
        return False


def compile_cuda(source: str, defines: Mapping[str, int | str], architecture: str) -> bytes:
    """Compile `source` to machine code for `architecture`, such as "sm_90a"."""
    library, program = _compiler(), c_void_p()
    created = library.nvrtcCreateProgram(
        byref(program), source.encode(), b"source.cu", 0, None, None
    )
    _check(created, "read the source")
    try:
        options = [f"--gpu-architecture={architecture}", "--std=c++17", *OPTIONS]
        options += [f"-D{name}={value}" for name, value in defines.items()]
        texts = (c_char_p * len(options))(*(o.encode() for o in options))
        if library.nvrtcCompileProgram(program, len(options), texts):
            log = _bytes(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            raise CudaError(f"nvrtc: {' '.join(options)}:\n{log}")
        return _bytes(program, "CUBIN")
    finally:
        library.nvrtcDestroyProgram(byref(program))


def _bytes(program: c_void_p, what: str) -> bytes:
    library, size = _compiler(), c_size_t()
    _check(getattr(library, f"nvrtcGet{what}Size")(program, byref(size)), f"read the {what}")
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(library, f"nvrtcGet{what}")(program, buffer), f"read the {what}")
    return buffer.raw


def _in_context(call: Callable[[], int]) -> int:
    """Return the status of `call`; enter the GPU's context first if the thread has none."""
    status = call()
    if status != INVALID_CONTEXT:
        return status
    torch.cuda.synchronize()  # torch enters the context
    return call()


def _check(status: int, what: str) -> None:
    if status:
        raise CudaError(f"cuda: cannot {what}: error {status}.")


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError("cuda: no driver (libcuda.so.1) on this machine.") from error


@functools.cache
def _compiler() -> ctypes.CDLL:
    tried = [str(path) for path in _packaged()] + [f"libnvrtc.so.{n}" for n in (13, 12)]
    for name in tried:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CudaError(f"cuda: no run-time compiler; tried {', '.join(tried)}.")


def _packaged() -> list[Path]:
    """Return the compilers of installed packages, newest first."""
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    return sorted(
        (p for root in roots for p in Path(root).glob("*/lib/libnvrtc.so.*")), reverse=True
    )
