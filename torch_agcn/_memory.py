r"""Memory that is kept instead of handed back to the system."""
import ctypes
import platform
import warnings

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def keep_memory() -> bool:
    r"""Lets this process keep the memory of large tensors that are freed, for
    the next ones, which makes training on large graphs faster.
    Call it once at the start of a program.

    .. warning::
        The process keeps the most memory it ever had, and layers that make
        large tensors for each edge may need several times of it. Where memory
        is short, start the program with
        :obj:`LD_PRELOAD=libtcmalloc_minimal.so.4` instead.

    Only glibc (Linux) can do it: elsewhere, nothing happens but a warning.

    :rtype: :obj:`bool`, whether it was done

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
