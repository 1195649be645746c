r"""Memory that is kept instead of handed back to the system."""
import ctypes
import platform
import warnings

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def keep_memory() -> bool:
    r"""Lets this process keep the memory of large tensors that are freed, for
    the next ones.

    By default, the C library hands tensors of more than 32 MiB back to the
    system and gets them anew page by page, in each training step on a large
    graph, for PyG's layers as for ours.
    Call it once at the start of a program, before tensors are made.

    The process keeps the most memory it ever had until it ends, and more:
    glibc does not put a tensor into the gap that one of the same size left,
    so layers that make large tensors for each edge may need several times
    the memory.
    Where memory is short, start the program with tcmalloc instead
    (:obj:`LD_PRELOAD=libtcmalloc_minimal.so.4`), which is as fast without
    that, or with :obj:`THP_MEM_ALLOC_ENABLE=1`, with which PyTorch gets huge
    pages; both only work from the start of a program.

    Only glibc (Linux) can do it: elsewhere, nothing happens but a warning.

    Returns:
        Whether it was done.

    Example:
        >>> import torch_agcn
        >>> if torch_agcn.keep_memory():
        ...     pass  # Large tensors are cheap from here on.
    """
    done = False
    if platform.libc_ver()[0] == 'glibc':
        mallopt = ctypes.CDLL(None).mallopt
        done = bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, -1))
    if not done:
        warnings.warn("'keep_memory' does nothing here: it is for glibc "
                      '(Linux). Elsewhere, preload another allocator, e.g. '
                      'jemalloc', stacklevel=2)
    return done
