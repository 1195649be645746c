r"""Settings of the memory allocator."""
import ctypes
import platform
import warnings

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def keep_memory() -> bool:
    r"""Lets the process reuse the memory of large tensors instead of returning
    it to the system, which is faster on large graphs. Call it once at the
    start of a program. Needs glibc (Linux), and warns elsewhere.

    .. warning::
        The process never shrinks, and may need several times the memory. Where
        memory is short, preload tcmalloc instead.

    :rtype: :obj:`bool`, whether the allocator was set

    Example:
        >>> import torch_agcn
        >>> is_set = torch_agcn.keep_memory()
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
