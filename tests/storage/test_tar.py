"""Tar members and whole shards, compared with `tarfile`."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext

from energize.data.tar import first_key, index_path, members, scan, split_name, walk
from energize.errors import ShardError
from tests.support.shards import offsets, packed

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
TWO = [("a.jpg", b"x" * 700), ("a.txt", b"hello"), ("b.jpg", b"y" * 512), ("b.txt", b"")]

word = st.text(st.characters(exclude_characters="/\0\n", exclude_categories=["Cs"]), min_size=1)
long_word = st.integers(1, 300).map("n".__mul__)
names = st.lists(st.one_of(word, long_word, st.just("ä" * 60)), min_size=1, max_size=4).map(
    "/".join
)
contents = st.lists(st.tuples(names, st.binary(max_size=1500)), max_size=8)


def regular(tar: bytes, **options) -> list[tuple[str, int, int, int]]:
    with tarfile.open(fileobj=io.BytesIO(tar), **options) as opened:
        return [(m.name, m.offset_data, m.size, m.offset) for m in opened if m.isfile()]


def content(tar: bytes) -> bytes:
    """The tar without its end mark."""
    return tar[: offsets(tar)[-1]]


@pytest.mark.parametrize("format", FORMATS)
@given(files=contents)
def test_members_are_those_of_tarfile(format, files):  # noqa: A002
    try:
        tar = packed(files, format)
    except ValueError:
        return  # USTAR has no room for the name
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        opened.getmembers()
        end = opened.offset
    assert [tuple(m) for m in members(tar[:end], "here")] == regular(tar)
    shifted = b"#" * 100 + tar
    moved, _ = walk(lambda at, size: shifted[at : at + size], 100, 100 + end, "here")
    assert [(m.name, m.offset - 100, m.size, m.header - 100) for m in moved] == regular(tar)


def test_a_long_name_may_lie_in_the_ustar_prefix():
    name = "/".join(["folder"] * 20) + "/0001.jpg"
    tar = packed([(name, b"1")], tarfile.USTAR_FORMAT)
    assert [m.name for m in members(content(tar), "here")] == [name]


@pytest.mark.parametrize("format", FORMATS)
def test_other_kinds_of_members_are_left_out(format):  # noqa: A002
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for name, kind in [
            ("d" * 120, tarfile.DIRTYPE),
            ("link.jpg", tarfile.LNKTYPE),
            ("soft.jpg", tarfile.SYMTYPE),
            ("fifo.jpg", tarfile.FIFOTYPE),
        ]:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "t" * 150 if kind == tarfile.SYMTYPE else "a.jpg"
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
    return data[:at] + header + data[at + 512 :]


def test_sizes_in_pax_headers_and_in_binary_hold():
    pax = io.BytesIO()
    with tarfile.open(fileobj=pax, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("a.bin")
        member.size, member.pax_headers = 600, {"size": "600", "comment": "x" * 2000}
        tar.addfile(member, io.BytesIO(b"1" * 600))
    raw = bytearray(pax.getvalue())
    header = raw.index(b"a.bin")
    raw[header + 124 : header + 136] = b"00000000001\0"
    raw = sealed(raw, header)
    assert [(m.name, m.size) for m in members(content(pax.getvalue()), "here")] == [("a.bin", 600)]
    assert [m.size for m in members(bytes(raw[: offsets(pax.getvalue())[-1]]), "here")] == [600]
    binary = bytearray(content(packed([("a.bin", b"1" * 600)])))
    binary[124:136] = b"\x80" + (600).to_bytes(11, "big")
    assert [m.size for m in members(bytes(sealed(binary)), "here")] == [600]


def test_global_pax_headers_are_passed_over():
    tar = packed(TWO, tarfile.PAX_FORMAT, pax_headers={"comment": "made by hand"})
    assert tar[156:157] == b"g"
    assert [tuple(m) for m in members(content(tar), "here")] == regular(tar)


def test_tars_from_before_the_magic_are_read_by_their_checksum():
    tar = bytearray(packed([("a.jpg", b"abc")]))
    tar[257:265] = bytes(8)
    assert [m.name for m in members(bytes(sealed(tar)[:1024]), "here")] == ["a.jpg"]
    tar[0] ^= 1
    with pytest.raises(ShardError, match="no valid header at byte 0"):
        members(bytes(tar[:1024]), "here")


def test_names_that_are_not_utf8_survive():
    tar = packed([("a\udcff.jpg", b"1")], tarfile.GNU_FORMAT)
    assert [m.name for m in members(content(tar), "here")] == ["a\udcff.jpg"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda d: d[:-1], "runs to byte"),
        (lambda d: d[:-500], "runs to byte"),
        (lambda d: d[:700], "runs to byte 1536"),
        (lambda d: d[:100], "truncated header"),
        (lambda d: b"?" * 512 + d[512:], "no valid header at byte 0"),
        (lambda d: d[:1536] + bytes(512) + d[2048:], "ends 2048 bytes before"),
        (lambda d: b"?" + d[1:], "no valid header at byte 0: bad checksum"),
        (lambda d: d[:156] + b"5" + d[157:], "no valid header at byte 0: bad checksum"),
        (lambda d: sealed(d[:124] + b"?" * 12 + d[136:]), "invalid header"),
        (lambda d: sealed(d[:124] + b"\x80" + b"\xff" * 11 + d[136:]), "runs to byte"),
        (lambda d: sealed(bytes(100) + d[100:]), "a file without a name"),
        (lambda d: sealed(d[:156] + b"S" + d[157:]), "sparse"),
        (lambda d: sealed(d[:156] + b"x" + d[157:]), "PAX header|extension header"),
    ],
)
def test_damage_is_named_with_its_place(change, what):
    data = content(packed([("a.jpg", b"x" * 700), ("a.txt", b"1"), ("a.cls", b"2")]))
    with pytest.raises(ShardError, match=what) as caught:
        members(change(data), "folder/shard.tar")
    assert str(caught.value).startswith("folder/shard.tar: ")


@given(at=st.integers(0, 3071), value=st.integers(0, 255))
def test_a_damaged_byte_is_found_or_harmless(at, value):
    """A changed header byte never gives other members."""
    data = bytearray(content(packed(TWO[:2])))
    good = members(bytes(data), "here")
    data[at % len(data)] = value
    try:
        found = members(bytes(data), "here")
    except ShardError:
        return
    assert found == good


@given(st.binary(max_size=2000))
def test_garbage_never_raises_anything_else(data):
    for garbage in (data, b"a.jpg" + bytes(119) + data[:300].ljust(133) + b"ustar" + data):
        try:
            members(garbage, "here")
        except ShardError:
            continue


@given(st.text(st.sampled_from("ab./_")))
def test_names_are_split_as_webdataset_does(name):
    expected = base_plus_ext(name)
    top = name.split("/")[0]
    if len(top) >= 4 and top.startswith("__") and top.endswith("__"):
        assert split_name(name) is None
    else:
        assert split_name(name) == (None if expected[0] is None else expected)


def test_the_key_is_found_in_the_head_of_a_sample():
    tar = packed([("x" * 200 + ".jpg", b"1" * 5000)], tarfile.GNU_FORMAT)
    assert first_key(tar[:2048]) == "x" * 200
    assert first_key(tar[:600]) is None
    assert first_key(b"") is None
    assert first_key(b"?" * 4096) is None


def test_index_lies_beside_the_shard():
    assert index_path("/a.b/c.d.tar") == "/a.b/c.d.tar.idx"
    assert index_path("x.tgz") == "x.tar.idx"


part = st.tuples(
    st.sampled_from(["a", "b", "in/c", "__meta__/x", "d" * 130, "dot.less/e", "é"]),
    st.sampled_from([".jpg", ".txt", ".meta.json", ""]),
    st.binary(max_size=700),
)


@pytest.mark.parametrize("format", FORMATS)
@given(files=st.lists(part, max_size=10))
def test_a_scan_finds_the_offsets_that_energon_writes(tmp_path_factory, format, files):  # noqa: A002
    seen: dict[str, bytes] = {}
    for key, suffix, data in files:
        seen.setdefault(key + suffix, data)
    try:
        tar = packed(seen.items(), format)
    except ValueError:
        return
    path = tmp_path_factory.mktemp("scan") / "shard.tar"
    path.write_bytes(tar)
    found = scan(path)
    assert [sample.offset for sample in found.samples] + [found.end] == offsets(tar)
    read = {
        f"{sample.key}.{part.name}": tar[part.offset : part.offset + part.size]
        for sample in found.samples
        for part in sample.parts
    }
    assert read == {name: data for name, data in seen.items() if split_name(name) is not None}


def test_a_scan_names_keys_that_come_back(tmp_path):
    path = tmp_path / "shard.tar"
    path.write_bytes(packed([(f"{key}.jpg", b"") for key in "abacab"] + [("b.txt", b"")]))
    found = scan(path)
    assert [sample.key for sample in found.samples] == list("abacab")
    assert found.duplicates == ("a", "b")
    assert [each.name for each in found.samples[-1].parts] == ["jpg", "txt"]


def test_a_scan_of_no_members_and_of_a_tar_without_end_mark(tmp_path):
    path = tmp_path / "shard.tar"
    path.write_bytes(packed([]))
    assert scan(path).samples == []
    assert scan(path).end == 0
    tar = packed(TWO)
    path.write_bytes(content(tar))
    assert [scan(path).end, len(scan(path).samples)] == [len(content(tar)), 2]


def test_every_truncation_is_found(tmp_path):
    tar = content(packed(TWO, tarfile.PAX_FORMAT))
    path = tmp_path / "shard.tar"
    whole = [m.header for m in members(tar, "")]
    for size in range(1, len(tar), 97):
        path.write_bytes(tar[:size])
        assert size not in whole
        with pytest.raises(ShardError, match=r"shard\.tar"):
            scan(path)


@pytest.mark.parametrize(
    ("compress", "remedy"),
    [(gzip.compress, "gzip -d"), (bz2.compress, "bzip2 -d"), (lzma.compress, "xz -d")],
)
def test_compressed_shards_are_refused_with_the_remedy(tmp_path, compress, remedy):
    path = tmp_path / "shard.tgz"
    path.write_bytes(compress(packed(TWO)))
    with pytest.raises(ShardError, match=remedy):
        scan(path)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "empty file"),
        (b"<html>not found</html>" * 100, "is no tar"),
        (b"\x28\xb5\x2f\xfd" * 500, "zstd -d"),
        (packed(TWO) + packed(TWO), "more data follows"),
        (packed([("a.jpg", b"1"), ("a.jpg", b"2")]), "two files 'a.jpg'"),
    ],
)
def test_files_that_are_no_shards_are_refused(tmp_path, data, what):
    path = tmp_path / "shard.tar"
    path.write_bytes(data)
    with pytest.raises(ShardError, match=what):
        scan(path)


def test_a_shard_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(ShardError, match=r"gone\.tar: cannot be read \(No such file"):
        scan(tmp_path / "gone.tar")
    with pytest.raises(ShardError, match="directory"):
        scan(tmp_path)
