"""Anchors in files: what a crash, another process or a careless editor leaves there."""

from pathlib import Path

import pytest

from holdfast import StorageError
from holdfast.checkpoint.keys.anchor import AnchorFile


@pytest.mark.parametrize("length", range(1, 9))
def test_a_torn_last_line_is_cut(length: int, tmp_path: Path) -> None:
    path = tmp_path / "anchor"
    reader, writer = AnchorFile(path), AnchorFile(path)
    writer.save("r", 1)
    with open(path, "ab") as file:
        file.write(b'["r", 9]'[:length])
    assert reader.load("r") == 1
    writer.save("s", 2)
    writer.save("r", 3)
    assert reader.runs() == writer.runs() == AnchorFile(path).runs() == {"r": 3, "s": 2}
    assert path.read_bytes() == b'["r", 1]\n["s", 2]\n["r", 3]\n'


@pytest.mark.parametrize(
    "line",
    [
        *(
            b"5",
            b'[["x"], 1]',
            b'["a", "b"]',
            b'["a", 1, 2]',
            b'{"a": 1, "b": 2}',
            b'["a", true]',
            b'["a", -5]',
        ),
        *(b'["a", 1e400]', b'["a", NaN]', b'["a", 2.0]', b"", b"\xff\xfe", b"[" * 100_000, b"x" * 3_000_000),
        *(b"[null, 1]", b'"ab"', b'["a", 1]\r["b", 2]', b"null"),
    ],
    ids=lambda line: repr(line[:12]),
)
def test_a_damaged_line_is_named(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "anchor"
    AnchorFile(path).save("r", 1)
    with open(path, "ab") as file:
        file.write(line + b"\n" + b'["r", 2]\n')
    anchor = AnchorFile(path)
    for ask in (anchor.runs, anchor.runs, lambda: anchor.save("r", 3), lambda: AnchorFile(path).load("r")):
        with pytest.raises(
            StorageError, match="anchor' is damaged in line 2; restore it, or begin with a new file"
        ):
            ask()


def test_a_line_without_an_end_is_not_read_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "anchor"
    path.write_bytes(b"x" * 3_000_000)
    with pytest.raises(StorageError, match="is damaged in line 1"):
        AnchorFile(path).runs()


def test_an_anchor_that_cannot_be_written_anew_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handle: int) -> None:
        raise OSError(5, "the disk is broken")

    monkeypatch.setattr("holdfast.checkpoint.keys.anchor._WORTH_REWRITING", 5)
    anchor = AnchorFile(tmp_path / "anchor")
    with monkeypatch.context() as broken:
        broken.setattr("os.fsync", fail)
        for number in range(1, 6):
            anchor.save("r", number)
        with pytest.raises(StorageError, match="the disk is broken"):
            anchor.save("r", 6)
    assert [path.name for path in tmp_path.iterdir()] == ["anchor"]
    assert AnchorFile(tmp_path / "anchor").load("r") == 6
    anchor.save("r", 7)
    assert (tmp_path / "anchor").read_bytes() == b'["r", 7]\n'
