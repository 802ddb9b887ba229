"""A package as one blob: canonical, bounded, and nothing but plain files."""

import io
import tarfile

import pytest

from node.environments.errors import PackageError
from node.environments.package import archive
from node.environments.package.archive import pack, root_of, unpack

FILES = {"environment.py": b"x = 1\n", "data/words.txt": b"a\n" * 300, "rows.jsonl": b""}


def tar(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """As other programs write it, without the zeros behind the end."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as file:
        for entry, data in entries:
            entry.size = len(data)
            file.addfile(entry, io.BytesIO(data))
    return out.getvalue()[: sum(512 + len(data) + -len(data) % 512 for _, data in entries) + 1024]


def test_a_tar_of_another_program_is_canonical_where_it_is_plain() -> None:
    plain = tar((entry("a.py"), b"x"), (entry("b.py"), b""))
    assert plain == pack({"a.py": b"x", "b.py": b""}) and unpack(plain) == {"a.py": b"x", "b.py": b""}


def entry(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type = kind
    for key, value in fields.items():
        setattr(found, key, value)
    return found


def test_what_was_packed_comes_out_and_any_tar_can_list_it() -> None:
    packed = pack(FILES)
    assert unpack(packed) == FILES
    with tarfile.open(fileobj=io.BytesIO(packed)) as file:
        assert file.getnames() == sorted(FILES)


def test_the_same_files_have_one_root_whatever_their_order() -> None:
    assert root_of(pack(FILES)) == root_of(pack(dict(reversed(FILES.items()))))
    assert root_of(pack(FILES)) != root_of(pack(FILES | {"rows.jsonl": b"{}"}))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../x.py", "plain relative path"),
        ("/x.py", "plain relative path"),
        ("a/../x.py", "plain relative path"),
        ("a//x.py", "plain relative path"),
        (".hidden.py", "plain relative path"),
        ("a/b/c/d/e.py", "plain relative path"),
        ("x\n.py", "plain relative path"),
        ("n" * 70 + ".py", "plain relative path"),
        ("x.so", "no kind"),
        ("intellect_package.py", "the program's own"),
    ],
)
def test_only_plain_names_of_texts_are_packed(name: str, why: str) -> None:
    with pytest.raises(PackageError, match=why):
        pack({name: b""})
    with pytest.raises(PackageError):
        unpack(tar((entry(name), b"")))


def test_what_is_not_text_is_refused_with_its_place() -> None:
    with pytest.raises(PackageError, match="rows.jsonl is not UTF-8 text: .* at byte 2"):
        pack({"rows.jsonl": b"ab\xff"})


@pytest.mark.parametrize(
    "broken",
    [
        tar((entry("a.py", tarfile.SYMTYPE, linkname="/etc/passwd"), b"")),
        tar((entry("a.py", tarfile.LNKTYPE, linkname="b.py"), b"")),
        tar((entry("a.py", tarfile.DIRTYPE), b"")),
        tar((entry("a.py", tarfile.FIFOTYPE), b"")),
        tar((entry("a.py", mtime=5), b"")),
        tar((entry("a.py", uname="root"), b"")),
        tar((entry("b.py"), b""), (entry("a.py"), b"")),
        tar((entry("a.py"), b""), (entry("a.py"), b"")),
        pack({"a.py": b"x"})[:-512],
        pack({"a.py": b"x"}) + bytes(512),
        pack({"a.py": b"x"})[:600],
        pack({"a.py": b"x"})[:512] + b"xy" + bytes(510 + 1024),
        b"",
        b"\1" * 512,
    ],
)
def test_whatever_is_not_canonical_is_refused(broken: bytes) -> None:
    with pytest.raises(PackageError):
        unpack(broken)


def test_a_size_that_lies_allocates_nothing() -> None:
    header = bytearray(pack({"a.py": b"x"})[:512])
    header[124:135] = b"77777777777"
    with pytest.raises(PackageError):
        unpack(bytes(header) + bytes(1024))


def test_packages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pack(FILES)
    monkeypatch.setattr(archive, "MAX_BYTES", len(whole) - 1)
    for attempt in (lambda: pack(FILES), lambda: unpack(whole)):
        with pytest.raises(PackageError, match="are allowed"):
            attempt()
    monkeypatch.setattr(archive, "MAX_BYTES", len(whole))
    monkeypatch.setattr(archive, "MAX_FILES", 2)
    for attempt in (lambda: pack(FILES), lambda: unpack(whole)):
        with pytest.raises(PackageError, match="are allowed|too many"):
            attempt()
