"""Tar members and whole shards, compared with `tarfile`."""

from __future__ import annotations

import gzip
import io
import tarfile
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext

from energize.core import limits
from energize.data.tar import first_key, index_path, members, scan, split_name
from energize.errors import ShardError
from tests.support.refusals import check_refusals
from tests.support.shards import offsets, packed

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
TWO = [
    ("a.jpg", b"x" * 700),
    ("a.txt", b"hello"),
    ("b.jpg", b"y" * 512),
    ("b.txt", b""),
]


def regular(tar: bytes, **options) -> list[tuple[str, int, int, int]]:
    with tarfile.open(fileobj=io.BytesIO(tar), **options) as opened:
        return [(m.name, m.offset_data, m.size, m.offset) for m in opened if m.isfile()]


def content(tar: bytes) -> bytes:
    """The tar without its end mark."""
    return tar[: offsets(tar)[-1]]


@pytest.mark.parametrize("format", FORMATS)
def test_other_kinds_of_members_are_left_out(format):  # noqa: A002
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for name, kind in [
            ("d" * 120, tarfile.DIRTYPE),
            ("link", tarfile.LNKTYPE),
            ("soft", tarfile.SYMTYPE),
            ("fifo.jpg", tarfile.FIFOTYPE),
        ]:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = (
                kind,
                "t" * 150 if kind == tarfile.SYMTYPE else "a.jpg",
            )
            if format != tarfile.USTAR_FORMAT or len(name + member.linkname) < 110:
                tar.addfile(member)
        member = tarfile.TarInfo("a.jpg")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"abc"))
    tar_bytes = buffer.getvalue()
    assert [tuple(m) for m in members(content(tar_bytes), "here")] == regular(tar_bytes)
    assert len(regular(tar_bytes)) == 1


def sealed(data, at=0):
    """With the right checksum in the header at a place."""
    header = bytearray(data[at : at + 512])
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(data[:at] + header + data[at + 512 :])


def pax(size="600", **headers):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("a.bin")
        member.size, member.pax_headers = 600, {"size": size, **headers}
        tar.addfile(member, io.BytesIO(b"1" * 600))
    return buffer.getvalue()


def test_names_and_sizes_of_all_kinds_of_headers():
    raw = bytearray(pax(comment="x" * 2000))
    header = raw.index(b"a.bin")
    raw[header + 124 : header + 136] = b"00000000001\0"
    binary = bytearray(content(packed([("a.bin", b"1" * 600)])))
    binary[124:136] = b"\x80" + (600).to_bytes(11, "big")
    signed = bytearray(packed([("é.jpg", b"abc")], tarfile.GNU_FORMAT)[:1024])
    total = (
        sum(byte - 256 * (byte > 127) for byte in signed[:148] + signed[156:512]) + 256
    )
    signed[148:156] = f"{total:06o}\0 ".encode()
    magic = bytearray(packed([("a.jpg", b"abc")])[:1024])
    magic[257:265] = bytes(8)
    long = "/".join(["folder"] * 20) + "/0001.jpg"
    rows = {
        "size of a PAX header": (content(pax()), "a.bin", 600),
        "which holds": (
            sealed(raw, header)[: offsets(pax(comment="x" * 2000))[-1]],
            "a.bin",
            600,
        ),
        "binary size": (sealed(binary), "a.bin", 600),
        "signed checksum": (bytes(signed), "é.jpg", 3),
        "from before the magic": (sealed(magic), "a.jpg", 3),
        "ustar prefix": (content(packed([(long, b"1")])), long, 1),
        "no UTF-8": (
            content(packed([("\udcff.jpg", b"1")], tarfile.GNU_FORMAT)),
            "\udcff.jpg",
            1,
        ),
    }
    for row, (data, name, size) in rows.items():
        assert [(m.name, m.size) for m in members(data, "here")] == [(name, size)], row
    tar = packed(TWO, tarfile.PAX_FORMAT, pax_headers={"comment": "made by hand"})
    assert tar[156:157] == b"g"
    assert [tuple(m) for m in members(content(tar), "here")] == regular(tar)


def test_damage_is_named_with_its_place(monkeypatch):
    data = content(packed([("a.jpg", b"x" * 700), ("a.txt", b"1"), ("a.cls", b"2")]))
    monkeypatch.setattr(limits, "HEADER_BYTES", 1000)
    extended = content(pax())
    at = extended.index(b"size=600")
    rows = {
        "cut in padding": (data[:-1], "runs to byte 3584"),
        "cut in a payload": (data[:700], "runs to byte 1536"),
        "no header": (b"?" * 512 + data[512:], "no valid header at byte 0"),
        "zeros": (data[:1536] + bytes(512) + data[2048:], "ends 2048 bytes before"),
        "letter": (b"?" + data[1:], "no valid header at byte 0: bad checksum"),
        "large": (
            sealed(data[:124] + b"\x80" + b"\xff" * 11 + data[136:]),
            "runs to byte",
        ),
        "negative": (sealed(data[:124] + b"\xff" * 12 + data[136:]), "a size of -"),
        "name": (sealed(bytes(100) + data[100:]), "a file without a name"),
        "sparse": (sealed(data[:156] + b"S" + data[157:]), "sparse"),
        "GNU sparse": (content(pax(**{"GNU.sparse.major": "1"})), "sparse"),
        "pax": (
            sealed(data[:156] + b"x" + data[157:]),
            "PAX header that cannot be parsed",
        ),
        "pax size": (
            extended[:at] + b"size=6x0" + extended[at + 8 :],
            "PAX header with the size",
        ),
        "alone": (extended[:1024], "an extension header without a member"),
        "long": (content(pax(comment="x" * 2000)), "extension header", "HEADER_BYTES"),
    }
    check_refusals(None, {
        name: (partial(members, changed, "folder/shard.tar"), ShardError, "folder/shard.tar", *told)
        for name, (changed, *told) in rows.items()
    })  # fmt: skip


@given(st.text(st.sampled_from("ab./_")))
def test_names_are_split_as_webdataset_does(name):
    expected = base_plus_ext(name)
    top = name.split("/")[0]
    if len(top) >= 4 and top.startswith("__") and top.endswith("__"):
        assert split_name(name) is None
    else:
        assert split_name(name) == (None if expected[0] is None else expected)


def test_keys_in_heads_and_paths_of_indices():
    tar = packed([("x" * 200 + ".jpg", b"1" * 5000)], tarfile.GNU_FORMAT)
    heads = [tar[:2048], tar[:600], b"", b"?" * 4096]
    assert [first_key(head) for head in heads] == ["x" * 200, None, None, None]
    assert index_path("/a.b/c.d.tar") == "/a.b/c.d.tar.idx"
    assert index_path("x.tgz") == "x.tar.idx"


def test_files_that_are_no_shards_are_refused(tmp_path):
    path = tmp_path / "shard.tar"

    def scanned(data):
        path.write_bytes(data)
        return scan(path)

    cut = content(packed(TWO, tarfile.PAX_FORMAT))
    rows = {
        "empty": (b"", "empty file"),
        "page": (b"<html>not found</html>" * 100, "is not a tar"),
        "zstd": (b"\x28\xb5\x2f\xfd" * 500, "zstd -d"),
        "gzip": (gzip.compress(packed(TWO)), "gzip -d"),
        "joined": (packed(TWO) + packed(TWO), "more data follows"),
        "twice": (packed([("a.jpg", b"1"), ("a.jpg", b"2")]), "two files 'a.jpg'"),
        **{f"cut at {size}": (cut[:size], "") for size in range(1, len(cut), 97)},
    }
    check_refusals(None, {
        name: (partial(scanned, data), ShardError, "shard.tar", told)
        for name, (data, told) in rows.items()
    } | {
        "missing": (partial(scan, tmp_path / "no"), ShardError, "no: cannot be read (No such fil"),
        "folder": (partial(scan, tmp_path), ShardError, "directory"),
    })  # fmt: skip
