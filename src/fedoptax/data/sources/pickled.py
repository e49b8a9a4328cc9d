"""Dictionaries of lists, numbers, strings and byte arrays, read from their pickles without running anything.

A pickle is a program for a stack machine, and Python's own machine calls whatever the file names. This one knows the
few instructions that such a dictionary needs; an array is rebuilt here, from its declared type, shape and bytes.

Instructions: Python's `pickletools`; NumPy's three (`_reconstruct`, `ndarray`, `dtype`): its `__reduce__` methods.
"""

from __future__ import annotations

import math
import pickletools
from enum import Enum
from typing import Any

import numpy as np

from fedoptax.errors import DataError

MAX_INSTRUCTIONS = 2**20
"""The longest program that is run: about five times that of CIFAR-100's training file, the longest of ours."""

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = {
    *("BININT", "BININT1", "BININT2", "SHORT_BINSTRING", "BINSTRING", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PLAIN_DTYPE = (3, "|", None, None, None, -1, -1, 0)  # the state of a type of one byte without fields


class _Refused(Exception):
    """The reason why a pickle is not read."""


class _Token(Enum):
    """What is on the stack but is no data: NumPy's names, the type uint8, and the mark where a list starts."""

    MARK = 0
    RECONSTRUCT = 1
    NDARRAY = 2
    DTYPE = 3
    UINT8 = 4


class _Array:
    """A stand-in for an array that is being rebuilt."""

    value: np.ndarray | None = None


_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _Token.RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _Token.RECONSTRUCT,  # since NumPy 2
    ("numpy", "ndarray"): _Token.NDARRAY,
    ("numpy", "dtype"): _Token.DTYPE,
}
_EMPTY_ARRAYS = ((_Token.NDARRAY, (0,), "b"), (_Token.NDARRAY, (0,), b"b"))  # what `_reconstruct` is called with


def read_pickle(data: bytes, where: str) -> dict[str, Any]:
    """Reads the pickle of a dictionary, such as a batch of CIFAR.

    Args:
      data: the pickle, protocol 2 to 4, written by Python 2 or 3.
      where: what to call it in an error: the file.

    Returns:
      The dictionary; its keys are strings, its arrays uint8. Strings of Python 2 are read as Latin-1.

    Raises:
      DataError: it is broken, or holds or names anything else. Nothing it names is imported or called.
    """
    try:
        result = _run(data)
    except _Refused as error:
        raise DataError(f"{where}: {error}") from None
    except (ValueError, Warning, IndexError) as error:  # of pickletools, where warnings are errors; of an empty stack
        raise DataError(f"{where}: not a whole pickle: {' '.join(str(error).split())[:200]}") from None
    if type(result) is not dict:
        raise DataError(f"{where}: its pickle holds no dictionary")
    return {key: value.value if isinstance(value, _Array) else value for key, value in result.items()}


def _run(data: bytes) -> Any:
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if count == MAX_INSTRUCTIONS:
            raise _Refused(f"a pickle of more than {MAX_INSTRUCTIONS} instructions")
        name = opcode.name
        if name == "STOP":
            return stack.pop()
        if name in _LITERALS:
            stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            if argument not in memo:
                raise _Refused(f"not a whole pickle: it recalls number {argument}, which it never stored")
            stack.append(memo[argument])
        elif name not in ("PROTO", "FRAME"):
            _step(name, argument, stack)
    raise _Refused("not a whole pickle: it ends early")


def _step(name: str, argument: Any, stack: list[Any]) -> None:
    """The instructions that build something."""
    if name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name == "MARK":
        stack.append(_Token.MARK)
    elif name == "EMPTY_LIST":
        stack.append([])
    elif name == "EMPTY_DICT":
        stack.append({})
    elif name in _TUPLES:
        stack.append(tuple(_pop(stack, _TUPLES[name])))
    elif name == "TUPLE":
        stack.append(tuple(_pop_to_mark(stack)))
    elif name in ("APPEND", "APPENDS"):
        items = _pop(stack, 1) if name == "APPEND" else _pop_to_mark(stack)
        _top(stack, list).extend(items)
    elif name in ("SETITEM", "SETITEMS"):
        items = _pop(stack, 2) if name == "SETITEM" else _pop_to_mark(stack)
        _set_items(_top(stack, dict), items)
    elif name in ("GLOBAL", "STACK_GLOBAL"):
        stack.append(_named(*(argument.split(" ", 1) if name == "GLOBAL" else _pop(stack, 2))))
    elif name == "REDUCE":
        function, arguments = _pop(stack, 2)
        stack.append(_called(function, arguments))
    elif name == "BUILD":
        (state,) = _pop(stack, 1)
        _set_state(stack[-1], state)
    else:
        raise _Refused(f"the pickle instruction {name}; only dictionaries, lists and byte arrays are read")


def _pop(stack: list[Any], count: int) -> list[Any]:
    if count > len(stack):
        raise IndexError("its stack runs empty")
    items = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return items


def _pop_to_mark(stack: list[Any]) -> list[Any]:
    for i in reversed(range(len(stack))):
        if stack[i] is _Token.MARK:
            items = stack[i + 1 :]
            del stack[i:]
            return items
    raise IndexError("its stack runs empty")


def _top(stack: list[Any], kind: type) -> Any:
    if not isinstance(stack[-1], kind):
        raise _Refused(f"not a whole pickle: it fills what is no {kind.__name__}")
    return stack[-1]


def _set_items(target: dict[str, Any], items: list[Any]) -> None:
    keys, values = items[::2], items[1::2]
    if len(keys) != len(values) or not all(type(key) is str for key in keys):
        raise _Refused("a dictionary whose keys are not strings")
    target.update(zip(keys, values))


def _named(module: Any, name: Any) -> _Token:
    if type(module) is not str or type(name) is not str:
        raise _Refused("it names something by no string; only NumPy arrays of bytes are read")
    if (module, name) not in _NAMES:
        raise _Refused(f"it names {f'{module}.{name}'[:80]!r}; only NumPy arrays of bytes are read")
    return _NAMES[module, name]


def _called(function: Any, arguments: Any) -> _Array | _Token:
    if function is _Token.RECONSTRUCT and arguments in _EMPTY_ARRAYS:
        return _Array()
    if function is _Token.DTYPE and type(arguments) is tuple and len(arguments) == 3 and type(arguments[0]) is str:
        if arguments[0] != "u1":
            raise _Refused(f"an array of type {arguments[0][:20]!r}; 'u1' (uint8) is allowed")
        return _Token.UINT8
    raise _Refused("it calls something; only NumPy arrays of bytes are rebuilt")


def _set_state(target: Any, state: Any) -> None:
    if target is _Token.UINT8:
        if state != _PLAIN_DTYPE:
            raise _Refused("an array of an unknown type; uint8 is allowed")
    elif isinstance(target, _Array):
        if target.value is not None:
            raise _Refused("an array that is filled twice")
        target.value = _array(state)
    else:
        raise _Refused("it sets the state of something; only NumPy arrays of bytes are rebuilt")


def _array(state: Any) -> np.ndarray:
    """The array of NumPy's state (version, shape, type, whether Fortran's order, bytes)."""
    if type(state) is not tuple or len(state) != 5:
        raise _Refused("an array without a shape, a type and bytes")
    _, shape, dtype, fortran, data = state
    if dtype is not _Token.UINT8 or type(fortran) is not bool or type(data) not in (str, bytes):
        raise _Refused("an array without a shape, a type and bytes")
    if type(shape) is not tuple or len(shape) > 4 or not all(type(n) is int and n >= 0 for n in shape):
        raise _Refused("an array whose shape is no shape")
    if isinstance(data, str):  # Python 2's bytes
        data = data.encode("latin-1")
    if math.prod(shape) != len(data):
        raise _Refused(f"an array of shape {shape} with {len(data)} bytes")
    return np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")
