"""What may happen to a store of arrays with an array `x`, uint8 of shape (4, 3, 2) or another."""

import json


def change(path, edit):
    path.write_bytes(edit(path.read_bytes()))


def meta(**changes):
    """An edit of `meta.json`: other fields of the array x."""

    def edit(data):
        content = json.loads(data)
        content["x"].update(changes)
        return json.dumps(content).encode()

    return edit


def replaced(content):
    return lambda data: content if isinstance(content, bytes) else json.dumps(content).encode()


META, X = "meta.json", "x.npy"
U1 = {"dtype": "|u1", "shape": [1]}
DAMAGE = {
    "no list": (META, replaced(b"")),
    "half a list": (META, lambda data: data[:20]),
    "no text": (META, replaced(b"\xff\xfe\x00")),
    "another list": (META, replaced([1, 2])),
    "a number": (META, replaced(3)),
    "deep": (META, replaced(b"[" * 100_000)),
    "an array that is no object": (META, replaced({"x": [1]})),
    "a name above": (META, replaced({"../x": U1})),
    "an absolute name": (META, replaced({"/etc/passwd": U1})),
    "a name with a zero": (META, replaced({"x\0": U1})),
    "a name that is a folder": (META, replaced({"": U1})),
    "no shape": (META, replaced({"x": {"dtype": "|u1"}})),
    "another shape": (META, meta(shape=[4, 2, 3])),
    "a larger shape": (META, meta(shape=[400, 3, 2])),
    "a negative shape": (META, meta(shape=[-4, 3, 2])),
    "a shape that is a number": (META, meta(shape=4)),
    "a shape of text": (META, meta(shape=["4", 3, 2])),
    "a shape of fractions": (META, meta(shape=[0, 1.5])),
    "a shape beyond all": (META, meta(shape=[0, 10**40])),
    "a shape of many": (META, meta(shape=[0] * 99)),
    "another type": (META, meta(dtype="|i1")),
    "an unknown type": (META, meta(dtype="what")),
    "a type of objects": (META, meta(dtype="|O", shape=[0])),
    "a type that is a list": (META, meta(dtype=[["a", "b", "c", "d"]])),
    "a type that is none": (META, meta(dtype=None)),
    "a type that is a program": (META, meta(dtype="(1,")),
    "an array that is empty": (X, replaced(b"")),
    "an array without its end": (X, lambda data: data[:-1]),
    "an array without its header": (X, lambda data: data[40:]),
    "a cut header": (X, lambda data: data[:40]),
    "another header": (X, lambda data: data.replace(b"(4, 3, 2)", b"(4, 2, 3)")),
    "a huge header": (X, lambda data: data.replace(b"(4, 3, 2), }", b"(4, 3, 9" + b"9" * 40 + b"), }")[: len(data)]),
    "a header that is a program": (X, lambda data: data.replace(b"'|u1'", b"{}[0]")),
    "a Fortran array": (X, lambda data: data.replace(b"False", b"True ")),
    "a zip file": (X, replaced(b"PK\3\4" + bytes(100))),
    "a pickle": (X, replaced(b"\x80\4]." + bytes(100))),
    "text": (X, replaced(b"hello")),
}
