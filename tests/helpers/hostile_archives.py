"""Archives, good and hostile, made byte by byte where no writer would."""

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile

FILES = {"readme": b"hello", "data/train": bytes(range(256)) * 20, "data/deep/er/test": b""}
LIMIT = 100_000


def member(name, size=0, **fields):
    info = tarfile.TarInfo(name)
    info.size = size
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def tar_bytes(members, pack=bytes):
    """A tar file of (TarInfo, content) pairs; its form is GNU's."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return pack(buffer.getvalue())


def zip_bytes(members, compression=zipfile.ZIP_DEFLATED):
    """A zip file of (name or ZipInfo, content) pairs."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def good_tar(pack=bytes):
    folders = [(member("data", type=tarfile.DIRTYPE), b"")]
    return tar_bytes(folders + [(member(f"./{name}", len(data)), data) for name, data in FILES.items()], pack)


GOOD = {
    "tar": good_tar(),
    "tar.gz": good_tar(gzip.compress),
    "tar.bz2": good_tar(bz2.compress),
    "tar.xz": good_tar(lzma.compress),
    "zip": zip_bytes([("data/", b""), *FILES.items()]),
    "stored zip": zip_bytes(FILES.items(), zipfile.ZIP_STORED),
}


def link(kind, target):
    return tar_bytes([(member("target", 2), b"hi"), (member("link", type=kind, linkname=target), b"")])


def named(name):
    return tar_bytes([(member("good", 2), b"hi"), (member(name, 2), b"hi")])


def zip_named(name):
    """The name as it stands, which the writer would correct."""
    data = zip_bytes([("good", b"hi"), ("~" * len(name), b"hi")])
    return data.replace(b"~" * len(name), name.encode())


def unix_zip(mode, **fields):
    info = zipfile.ZipInfo("file")
    info.external_attr = mode << 16
    for field, value in fields.items():
        setattr(info, field, value)
    return zip_bytes([("good", b"hi"), (info, b"/etc/passwd")])


def sparse():
    """A file of 1 GiB of holes, of GNU's old sparse form."""
    info = member("holes", type=tarfile.GNUTYPE_SPARSE)
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[386:482] = b"00000000000\0" * 8
    block[483:495] = b"10000000000\0"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + bytes(1024)


def declared(size):
    """A member that declares more than the archive holds."""
    return member("huge", size).tobuf(tarfile.GNU_FORMAT) + b"little"


def pax(**headers):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member("good", 2, pax_headers=headers), io.BytesIO(b"hi"))
    return buffer.getvalue()


def overlapping_zip():
    """Two names for one content: the second entry of the list points at the first file."""
    data = bytearray(zip_bytes([("a", bytes(900)), ("b", bytes(900))]))
    entries = [i for i in range(len(data)) if data[i : i + 4] == b"PK\1\2"]
    data[entries[1] + 42 : entries[1] + 46] = struct.pack("<I", 0)
    return bytes(data)


def encrypted_zip():
    data = bytearray(zip_bytes([("a", b"hi")]))
    data[6] |= 1
    data[data.find(b"PK\1\2") + 8] |= 1
    return bytes(data)


BIG = tar_bytes([(member("zeros", 2**20), bytes(2**20))])
HOSTILE = {
    "an absolute name": (named("/tmp/owned"), "refused: a file named '/tmp/owned'"),
    "a name above": (named("../owned"), "'../owned'"),
    "a name that goes down and up": (named("a/../../owned"), "'a/../../owned'"),
    "a name with a backslash": (named("..\\owned"), "refused"),
    "a name with a drive": (named("C:owned"), "refused"),
    "a name with a line end": (named("a\nb"), "refused: a file named 'a\\nb'"),
    "a name with a terminal's codes": (named("a\x1b[2Jb"), "refused"),
    "a name that is no text": (named("a\udcffb"), "refused"),
    "the folder itself": (named("."), "without a name"),
    "a symbolic link": (link(tarfile.SYMTYPE, "/etc/passwd"), "'link' is no plain file"),
    "a symbolic link within": (link(tarfile.SYMTYPE, "target"), "'link' is no plain file"),
    "a hard link": (link(tarfile.LNKTYPE, "target"), "'link' is no plain file"),
    "a device": (tar_bytes([(member("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3), b"")]), "no plain file"),
    "a block device": (tar_bytes([(member("disk", type=tarfile.BLKTYPE), b"")]), "no plain file"),
    "a pipe": (tar_bytes([(member("pipe", type=tarfile.FIFOTYPE), b"")]), "no plain file"),
    "a sparse file": (sparse(), "no plain file"),
    "two files of one name": (tar_bytes([(member("a", 1), b"1"), (member("a", 1), b"2")]), "two files named 'a'"),
    "two spellings of one name": (
        tar_bytes([(member("a", 1), b"1"), (member("./a", 1), b"2")]),
        "two files named './a'",
    ),
    "a file where a folder is": (tar_bytes([(member("a", 1), b"1"), (member("a/b", 1), b"2")]), "archive"),
    "a folder where a file is": (tar_bytes([(member("a/b", 1), b"1"), (member("a", 1), b"2")]), "archive"),
    "too many bytes": (BIG, "more than 100000 bytes"),
    "a gzip bomb": (gzip.compress(BIG), "more than 100000 bytes"),
    "a bzip2 bomb": (bz2.compress(BIG), "more than 100000 bytes"),
    "an xz bomb": (lzma.compress(BIG), "more than 100000 bytes"),
    "too many files": (tar_bytes([(member(str(i)), b"") for i in range(101)]), "more than 100 files"),
    "too many folders": (tar_bytes([(member(str(i), type=tarfile.DIRTYPE), b"") for i in range(101)]), "more than 100"),
    "more declared than there is": (declared(5000), "archive"),
    "a terabyte declared": (declared(2**40), "more than 100000 bytes"),
    "a negative size": (pax(size="-1024"), "archive"),
    "a size that is no number": (pax(size="many"), "archive"),
    "a name above in a pax header": (pax(path="../owned"), "'../owned'"),
    "a long pax header": (gzip.compress(pax(comment="x" * 2**21)), "a header of more than"),
    "a long name": (gzip.compress(named("x" * 2**21)), "a header of more than"),
    "padding without end": (gzip.compress(good_tar() + bytes(2**21)), "headers together"),
    "a truncated tar": (good_tar()[:3000], "archive"),
    "a truncated gzip": (good_tar(gzip.compress)[:-20], "archive"),
    "a wrong checksum": (good_tar(gzip.compress)[:-8] + bytes(8), "archive"),
    "a truncated bzip2": (good_tar(bz2.compress)[:-20], "archive"),
    "a truncated xz": (good_tar(lzma.compress)[:-40], "archive"),
    "a damaged header in the middle": (
        good_tar().replace(b"./data/train", b"./data/trail"),
        "last header is damaged",
    ),
    "bytes after the end": (good_tar() + b"more", "belong to no file"),
    "nothing": (b"", "archive"),
    "no archive": (b"hello" * 500, "damaged, or no archive"),
    "an absolute name in a zip": (zip_named("/tmp/owned"), "'/tmp/owned'"),
    "a name above in a zip": (zip_named("../owned"), "'../owned'"),
    "a backslash in a zip": (zip_named("..\\owned"), "refused"),
    "a zero byte in a zip": (zip_named("a\0b"), "refused"),
    "a symbolic link in a zip": (unix_zip(0o120777), "'file' is no plain file"),
    "a device in a zip": (unix_zip(0o020666), "'file' is no plain file"),
    "a zip bomb": (zip_bytes([("zeros", bytes(2**20))]), "more than 100000 bytes"),
    "too many files in a zip": (zip_bytes([(str(i), b"") for i in range(101)]), "more than 100 files"),
    "files that overlap in a zip": (overlapping_zip(), "archive"),
    "a password": (encrypted_zip(), "cannot be read"),
    "a truncated zip": (GOOD["zip"][:-30], "damaged"),
    "a damaged zip": (GOOD["stored zip"].replace(b"hello", b"hallo"), "CRC"),
}
