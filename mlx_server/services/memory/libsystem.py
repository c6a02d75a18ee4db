"""What of macOS's libSystem is called, through ctypes. Every function raises `OSError` when it cannot answer.

The layouts are those of the public headers sys/resource.h and mach/vm_statistics.h (`test_macos.py`).
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

LIBRARY = "/usr/lib/libSystem.B.dylib"

_HOST_VM_INFO64 = 4
_RUSAGE_INFO_V0 = 0  # every later version begins with it


class RusageInfoV0(ctypes.Structure):
    """struct rusage_info_v0."""

    _fields_ = (
        ("ri_uuid", ctypes.c_uint8 * 16),
        ("ri_user_time", ctypes.c_uint64),
        ("ri_system_time", ctypes.c_uint64),
        ("ri_pkg_idle_wkups", ctypes.c_uint64),
        ("ri_interrupt_wkups", ctypes.c_uint64),
        ("ri_pageins", ctypes.c_uint64),
        ("ri_wired_size", ctypes.c_uint64),
        ("ri_resident_size", ctypes.c_uint64),
        ("ri_phys_footprint", ctypes.c_uint64),
        ("ri_proc_start_abstime", ctypes.c_uint64),
        ("ri_proc_exit_abstime", ctypes.c_uint64),
    )


class VMStatistics64(ctypes.Structure):
    """struct vm_statistics64, in its first version (`HOST_VM_INFO64_REV1_COUNT`). The counts are of pages."""

    _fields_ = (
        ("free_count", ctypes.c_uint32),
        ("active_count", ctypes.c_uint32),
        ("inactive_count", ctypes.c_uint32),
        ("wire_count", ctypes.c_uint32),
        ("zero_fill_count", ctypes.c_uint64),
        ("reactivations", ctypes.c_uint64),
        ("pageins", ctypes.c_uint64),
        ("pageouts", ctypes.c_uint64),
        ("faults", ctypes.c_uint64),
        ("cow_faults", ctypes.c_uint64),
        ("lookups", ctypes.c_uint64),
        ("hits", ctypes.c_uint64),
        ("purges", ctypes.c_uint64),
        ("purgeable_count", ctypes.c_uint32),
        ("speculative_count", ctypes.c_uint32),
        ("decompressions", ctypes.c_uint64),
        ("compressions", ctypes.c_uint64),
        ("swapins", ctypes.c_uint64),
        ("swapouts", ctypes.c_uint64),
        ("compressor_page_count", ctypes.c_uint32),
        ("throttled_count", ctypes.c_uint32),
        ("external_page_count", ctypes.c_uint32),
        ("internal_page_count", ctypes.c_uint32),
        ("total_uncompressed_pages_in_compressor", ctypes.c_uint64),
    )


@functools.cache
def libsystem() -> ctypes.CDLL:
    """The library. Raises `OSError` where there is none."""
    return ctypes.CDLL(LIBRARY, use_errno=True)


def phys_footprint(pid: int) -> int:
    """Bytes that a process is charged for, as Activity Monitor and the system's limits count."""
    call = _function("proc_pid_rusage", ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
    usage = RusageInfoV0()
    if call(pid, _RUSAGE_INFO_V0, ctypes.byref(usage)) != 0:
        raise _error("proc_pid_rusage")
    return int(usage.ri_phys_footprint)


def vm_statistics() -> VMStatistics64:
    """The counts of the whole machine."""
    call = _function(
        "host_statistics64", ctypes.c_int, ctypes.c_uint32, ctypes.c_int, ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_uint32),
    )  # fmt: skip
    statistics = VMStatistics64()
    count = ctypes.c_uint32(ctypes.sizeof(VMStatistics64) // ctypes.sizeof(ctypes.c_uint32))
    code = call(_host_port(), _HOST_VM_INFO64, ctypes.byref(statistics), ctypes.byref(count))
    if code != 0:
        raise OSError(f"host_statistics64 returned {code}")
    return statistics


def sysctl_int(name: str) -> int:
    """A 32-bit value of the kernel."""
    size_t = ctypes.c_size_t
    call = _function(
        "sysctlbyname", ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(size_t), ctypes.c_void_p, size_t
    )
    value = ctypes.c_int32()
    size = size_t(ctypes.sizeof(value))
    if call(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0) != 0:
        raise _error(f"sysctl {name}")
    return value.value


@functools.cache
def _host_port() -> int:
    """Asked for once: each call would give the process one more right to it."""
    return int(_function("mach_host_self", ctypes.c_uint32)())


def _function(name: str, result: Any, *arguments: Any) -> Any:
    try:
        function = libsystem()[name]
    except AttributeError as error:
        raise OSError(f"libSystem has no {name}") from error
    function.restype = result
    function.argtypes = arguments
    return function


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
