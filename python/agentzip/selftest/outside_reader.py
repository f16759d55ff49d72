"""
`python -m agentzip.selftest.outside_reader PID ADDRESS LENGTH`: a third process that reads.

Profilers and debuggers read other processes with process_vm_readv(2).  This reads a range and
prints its CRC-32, so that the check can compare it with what the target says must be there.
"""

import ctypes
import os
import sys
import zlib

__all__ = ["main"]


class _Part(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def main() -> int:
    """Read, and print the checksum or the error."""
    pid, address, length = int(sys.argv[1]), int(sys.argv[2], 16), int(sys.argv[3])
    library = ctypes.CDLL(None, use_errno=True)
    library.process_vm_readv.restype = ctypes.c_ssize_t
    buffer = ctypes.create_string_buffer(length)
    here = _Part(ctypes.addressof(buffer), length)
    there = _Part(address, length)
    got = library.process_vm_readv(
        pid, ctypes.byref(here), ctypes.c_ulong(1), ctypes.byref(there), ctypes.c_ulong(1), 0
    )
    if got != length:
        sys.stdout.write(f"{got} of {length} bytes: {os.strerror(ctypes.get_errno())}\n")
        return 1
    sys.stdout.write(f"{zlib.crc32(buffer.raw):08x}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
