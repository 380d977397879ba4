"""The reader that was written from docs/reference/format.md finds in stores what the library put there."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import ormsgpack
import pytest

from holdfast import (
    Executor,
    ExecutorFailed,
    RunStatus,
    SqliteCheckpointStorage,
    Store,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
)
from tests.golden import make, reader, renames
from tests.programs import ROOT
from tests.support.parts import (
    CheckpointId,
    Commit,
    Expected,
    FileStore,
    Head,
    Letter,
    Note,
    Record,
    RunId,
    SqliteStore,
)

EXPECTED: dict[str, Any] = json.loads(make.EXPECTED.read_text())


@pytest.fixture(params=make.Stores._fields)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a golden store."""
    path: Path = getattr(make.copied(tmp_path), request.param)
    return path


@pytest.mark.parametrize("namespace", list(EXPECTED))
def test_the_reader_finds_what_was_stored(store: Path, namespace: str) -> None:
    assert make.expected(store, namespace) == EXPECTED[namespace]


def test_keyframes_hold_what_replay_gives(store: Path) -> None:
    keyframes = 0
    for run in reader.read(store):
        for made in run.listed():
            checkpoint_id = made["checkpoint_id"]
            assert run.held(checkpoint_id).shown() == run.replayed(checkpoint_id).shown()
            keyframes += made["keyframe"]
    assert keyframes >= 6


def test_a_fingerprint_is_the_digest_of_the_graph_that_is_stored_with_it(store: Path) -> None:
    nested = 0
    for run in reader.read(store):
        for made in run.listed():
            held = run.held(made["checkpoint_id"])
            assert held.graph is not None
            graph = json.loads(held.graph.decoded())
            inner = graph.pop("workflows", {})
            assert digest(graph) == held.fingerprint
            assert {fingerprint: digest(described) for fingerprint, described in inner.items()} == {
                fingerprint: fingerprint for fingerprint in inner
            }
            nested += len(inner)
    assert nested


def digest(graph: dict[str, Any]) -> str:
    text = json.dumps(graph, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def test_each_extension_code_of_the_page_is_stored_and_no_other(store: Path) -> None:
    page = (
        (ROOT / "docs" / "reference" / "format.md")
        .read_text(encoding="utf-8")
        .partition("## Exported runs")[0]
    )
    documented = {int(code) for code in re.findall(r"^\| (\d+) \| .* \| .* \|$", page, re.MULTILINE)}
    found: set[int] = set()
    for run in reader.read(store):
        for value in run.held(run.head["checkpoint_id"]).values():
            for data in value.encoded():
                found |= reader.codes_in(data)
    assert found == documented == set(reader._EXTENSIONS)


def test_each_stored_form_is_there(store: Path) -> None:
    read = reader.open_store(store)
    forms = set()
    for run_id in read.heads:
        for record in read.records(run_id):
            parts = [record.changes, record.values, *(record.keyframe[1:] if record.keyframe else ())]
            forms |= {part[:1] for part in parts}
    assert forms == {b"", b"\x00", b"\x01", b"\x02"}
    assert {note.data[:1] for note in read.notes("journaled")} == {b"\x00", b"\x01"}


def test_each_kind_of_change_is_in_the_journal() -> None:
    journal = EXPECTED[""]["journaled"]["journal"]
    changes = [change for note in journal for change in note.get("changes", [])]
    assert {kind for _, _, kind, *_ in changes} == {"put", "append", "drop", "update", "put anyway"}
    assert {rule for _, _, kind, *rest in changes if kind == "update" for rule in rest[1:]} == {"add", None}
    turns = [note for note in journal if "turn" in note]
    for part in ("messages", "outputs", "requests", "events"):
        assert any(note[part] for note in turns), part


def test_a_rename_keeps_what_a_run_holds(store: Path) -> None:
    """Everything that has a name is under the old one before, and under the new one behind."""
    (run,) = [run for run in reader.read(store) if run.head["run_id"] == "renamed"]
    before, after = (
        json.dumps({**run.held(made["checkpoint_id"]).shown(), "graph": None, "rounds": None})
        for made in run.listed()
        if made["superstep"] == 5 and made["phase"] == "start"
    )
    for old, new in renames.NAMES.items():
        pattern = rf"(?<=['\"/]){old}(?=['\"#:])"
        assert re.search(pattern, before), old
        assert not re.search(pattern, after), old
        before = re.sub(pattern, new, before)
    before = before.replace("'Office' -> 'add'", "'Office', 'Late' -> 'add'")  # the source that it gained
    fingerprint = r'"fingerprint": "[0-9a-f]{64}"'
    assert re.sub(fingerprint, "", before) == re.sub(fingerprint, "", after)


def lines_of(directory: Path, run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "runs" / f"{run}.jsonl").read_bytes().splitlines()]


def write_lines(directory: Path, run: str, lines: list[dict[str, Any]]) -> None:
    """Write the file of a run with checksums that are right."""
    content = b""
    for line in lines:
        line["at"] = len(content)
        rest = {key: value for key, value in line.items() if key != "sum"}
        summed = json.dumps(rest, ensure_ascii=False, separators=(",", ":")).encode()[1:]
        checksum = reader.sum_of(lines[0]["file"] if content else "", summed)
        content += b'{"sum":"%s",%s\n' % (checksum.encode(), summed)
    (directory / "runs" / f"{run}.jsonl").write_bytes(content)


def test_the_reader_passes_over_a_last_line_that_is_not_complete_and_no_other(tmp_path: Path) -> None:
    _, directory = make.copied(tmp_path)
    file = directory / "runs" / "failed.jsonl"
    content = file.read_bytes()
    for torn in (content.splitlines()[-1][:200], bytes(50) + b"\n"):
        file.write_bytes(content + torn)
        assert make.expected(directory) == EXPECTED[""]
    middle = content.index(b"\n") + 300
    for broken in (content[:middle] + bytes(9) + content[middle + 9 :], content[:-2] + b"]\n"):
        file.write_bytes(broken)
        with pytest.raises(reader.Broken, match=r"failed\.jsonl: "):
            reader.read(directory)


def test_the_reader_notices_a_changed_record(tmp_path: Path) -> None:
    _, directory = make.copied(tmp_path)
    file = directory / "runs" / "fan-in.jsonl"
    file.write_text(file.read_text().replace('"$pack":21', '"$pack":22'))
    with pytest.raises(reader.Broken, match="has a checksum that is not right"):
        reader.read(directory)
    write_lines(directory, "fan-in", lines_of(directory, "fan-in"))
    with pytest.raises(reader.Broken, match="is not what its id says"):
        reader.read(directory)


def test_the_reader_shares_nothing_with_the_library() -> None:
    program = f"""
import runpy, sys
runpy.run_path({str(make.HERE / "reader.py")!r})
sys.exit(any(name.startswith(("holdfast", "tests")) for name in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_the_reader_prints(store: Path) -> None:
    done = subprocess.run(
        [sys.executable, make.HERE / "reader.py", store],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=True,
    )
    assert "run fan-in of Joining: waiting" in done.stdout
    assert "ZeroDivisionError" in done.stdout
    assert "journal: [" in done.stdout
    assert "inbox: [" in done.stdout


# Notes and letters of any content: a store keeps what it is given, whoever gives it.

KEYS = ["plain", "", 'a "quoted" \\ one', "half a character \ud83d", "h\u00e9llo"]
DATA = [
    b"",
    b"\x00" + ormsgpack.packb({"in": ["the raw", b"form"]}),
    b"\x00\xc1 is no MessagePack",
    b"\x01 is no frame",
    b"\x02" + bytes(range(32)),
    b"\x02 is no digest",
    ormsgpack.packb(["MessagePack", "in no form"]),
    b"\xffneither",
]
RUN = RunId("r")


def head(seq: int) -> Head:
    checkpoint_id = CheckpointId(f"{seq:064x}")
    return Head(RUN, "W", RUN, checkpoint_id, seq, 1, RunStatus.RUNNING, created=1, updated=seq)


def record(seq: int) -> Record:
    return Record(CheckpointId(f"{seq:064x}"), RUN, seq, ormsgpack.packb({"seq": seq}), b"", b"", 1)


@pytest.mark.parametrize("kind", make.Stores._fields)
async def test_the_reader_finds_the_notes_and_letters_that_a_store_has(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    store: Store = SqliteStore(path) if kind == "database" else FileStore(path)

    async def compare(notes: int, letters: int) -> None:
        read = reader.open_store(path)
        for found, kept, count in (
            (read.notes(RUN), await store.notes(RUN), notes),
            (read.letters(RUN), await store.inbox(RUN), letters),
        ):
            assert [(key, data) for key, data in found] == [(key, data) for key, data in kept]
            assert len(kept) == count

    everything = [(f"{key} {number}", data) for key in KEYS for number, data in enumerate(DATA)]
    count = len(everything)
    notes = tuple(Note(*pair) for pair in everything)
    here = Expected(head(1).checkpoint_id, 1)
    await store.commit(Commit(head(1), None, (record(1),), notes=notes[:10]))
    await store.leave(RUN, 1, [Letter(*pair) for pair in everything])
    await compare(notes=10, letters=count)

    other = Note(notes[3].key, b"other")  # in the place of the first
    taken = (everything[0][0], everything[-1][0])
    await store.commit(Commit(head(1), here, notes=(*notes[10:], other), taken=taken))
    await compare(notes=count, letters=count - 2)

    await store.commit(Commit(head(2), here, (record(2),), notes=notes[:1], taken=(everything[5][0],)))
    await compare(notes=1, letters=count - 3)

    await store.commit(Commit(head(3), Expected(head(2).checkpoint_id, 1), (record(3),)))
    await compare(notes=0, letters=count - 3)
    assert [found.seq for found in reader.open_store(path).records(RUN)] == [1, 2, 3]
    await store.close()


@pytest.mark.parametrize("size", [1, 20_000])
async def test_bundles(tmp_path: Path, size: int) -> None:
    """Many notes, and big ones, are stored as one; the reader finds each of them."""

    class Part(Executor):
        @handler
        async def work(self, number: int, ctx: WorkflowContext) -> None:
            for index in range(size // 4_000 + 1):
                await ctx.queue_state_update(str(index), f"{self.id} {index} ".ljust(min(size, 4_000), "x"))
            if self.id == "p0":
                raise ValueError("not this one")

    @executor(id="begin")
    async def begin(number: int) -> int:
        return number

    parts = [Part.bind(id=f"p{number}") for number in range(100)]
    builder = WorkflowBuilder(name="Many").set_start_executor(begin).add_fan_out_edges(begin, parts)
    async with SqliteCheckpointStorage(tmp_path / "store.db") as storage:
        with pytest.raises(ExecutorFailed):
            await builder.with_checkpointing(storage).build().run(1, run_id="many")
        assert len(await storage.store.notes(RunId("many"))) < 99
    (run,) = reader.read(tmp_path / "store.db")
    found = run.journal()
    assert sorted(note["turn"] for note in found) == sorted(f"p{number}" for number in range(1, 100))


def test_all_that_removing_writes_is_there() -> None:
    directory = make.STORES.directory
    kept = lines_of(directory, "retained")
    assert {line["kind"] for line in kept} == {"file", "kept", "events", "state"}
    assert any("tags" in line for line in kept)
    assert kept[-1]["head"]["retention"] == "keep_last:2"
    assert [line["kind"] for line in lines_of(directory, "edited")][-4:] == [
        "tags",
        "removal",
        "tags",
        "tags",
    ]
    assert lines_of(directory, "gone")[-1]["kind"] == "gone"
    found = EXPECTED[""]
    assert "gone" not in found
    tagged = {run for run, kept in found.items() if any(made["tags"] for made in kept["checkpoints"])}
    assert tagged == {"retained", "edited"}
    assert any(made["cut"] for made in found["retained"]["checkpoints"])


@pytest.mark.parametrize(("what", "within"), [("removed", ""), ("tags", ""), ("keyframes", "body")])
def test_the_reader_would_notice_what_it_does_not_apply(what: str, within: str, tmp_path: Path) -> None:
    """Without what a line says of earlier ones the same records are not found."""
    _, directory = make.copied(tmp_path)
    lines = lines_of(directory, "edited")
    assert any(what in (line[within] if within else line) for line in lines)
    for line in lines:
        (line[within] if within else line).pop(what, None)
    write_lines(directory, "edited", lines)
    try:
        found = make.expected(directory)
    except (reader.Broken, KeyError):
        return
    assert found != EXPECTED[""]
