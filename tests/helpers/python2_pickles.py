"""Pickles as Python 2 and its NumPy wrote them, byte by byte: CIFAR's files are of that kind."""

import struct


def text(value):
    return b"U" + bytes([len(value)]) + value.encode("latin-1")


def integer(value):
    return b"J" + struct.pack("<i", value)


def listing(items):
    return b"](" + b"".join(items) + b"e"


def dictionary(entries):
    """A whole pickle; `entries` maps a name to what another function here made of its value."""
    return b"\x80\x02}(" + b"".join(text(name) + value for name, value in entries.items()) + b"u."


def array(shape, data, dtype="u1", fortran=False, module="numpy.core.multiarray"):
    """An array: NumPy's `_reconstruct`, then its state (version, shape, type, Fortran's order, bytes)."""
    empty = f"c{module}\n_reconstruct\ncnumpy\nndarray\n".encode() + b"K\0\x85" + text("b") + b"\x87R"
    kind = b"cnumpy\ndtype\n" + text(dtype) + b"K\0K\x01\x87R(K\x03" + text("|") + b"NNN" + integer(-1) * 2 + b"K\0tb"
    dimensions = b"(" + b"".join(map(integer, shape)) + b"t"
    content = b"T" + struct.pack("<i", len(data)) + data
    return empty + b"(K\x01" + dimensions + kind + (b"\x88" if fortran else b"\x89") + content + b"tb"
