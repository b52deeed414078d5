"""Memory of mapped files, given back as soon as a tensor of it has been read."""

from __future__ import annotations

import ctypes
import mmap
import sys

from torch import Tensor

PAGEOUT = 21
"""Linux's MADV_PAGEOUT (5.4): pages go, what they hold stays. Elsewhere nothing is done."""


def give_back(tensor: Tensor) -> None:
    """Let the system take the pages of a tensor that will not be read again.

    A file that transformers loads from is mapped until all of it is loaded, so what was read would
    stay in memory to the end. Values are safe: a page that is asked for again comes back.
    """
    if sys.platform != "linux" or tensor.device.type != "cpu":
        return
    storage = tensor.untyped_storage()
    start = tensor.data_ptr()
    end = min(start + tensor.nbytes, storage.data_ptr() + storage.nbytes())
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE  # whole pages of this tensor alone
    length = end // mmap.PAGESIZE * mmap.PAGESIZE - first
    if length > 0 and tensor.is_contiguous():
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), ctypes.c_int(PAGEOUT))
