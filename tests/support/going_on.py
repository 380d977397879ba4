"""What came of a run, told so that runs which were stopped can be compared with one that was not.

``assert_resumable`` answers all questions at once and knows what it is told. This one also answers them one by one
or while the run is under way, counts its answers, answers twice, and looks at what the run itself holds at the end.
"""

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from holdfast import (
    Cause,
    CheckpointInfo,
    CheckpointStorage,
    Codec,
    PendingRequest,
    Phase,
    RequestAlreadyAnswered,
    Run,
    SuperStepStartedEvent,
    Workflow,
    WorkflowEvent,
)
from holdfast.checkpoint import inbox
from holdfast.checkpoint.inbox import read_letter
from holdfast.checkpoint.read.loader import load
from holdfast.engine.value import NotAtHand
from holdfast.errors import StorageError
from holdfast.testing.resumable import Ending, compare_endings
from tests.support.parts import (
    Depth,
    MortalStore,
    Request,
    RunId,
    Snapshot,
    Value,
    differs,
    select_durable_events,
    snapshot_of,
)

TOGETHER, ONE_BY_ONE, AT_ONCE = "together", "one by one", "at once"
"""How questions are answered: all when the run waits, the first when it waits, or while the run is under way."""

Answer = Callable[[PendingRequest], Any]
Make = Callable[[], Workflow]


class Given(NamedTuple):
    """An answer that was given; ``seq`` is the checkpoint on which the run stood."""

    seq: int
    request_id: str
    answer: Any


class Story(NamedTuple):
    """What came of a run, and the answers that it was given."""

    ending: Ending
    answers: list[Given]


# -- what a run holds ------------------------------------------------------------------------------


async def read(value: Value) -> Any:
    """A value, fetched if it is not at hand."""
    while True:
        try:
            return value.load()
        except NotAtHand as absent:
            await absent.fetch()


async def picture(snapshot: Snapshot) -> dict[str, Any]:
    """All of a snapshot but its counters, as plain data; what has no order is sorted."""

    async def asked(request: Request | None) -> Any:
        if request is None:
            return None
        return request.request_id, request.executor_id, await read(request.data), str(request.response_type)

    async def all_of(values: Iterable[Value]) -> list[Any]:
        return [await read(value) for value in values]

    return {
        "superstep": snapshot.superstep,
        "deliveries": [
            (d.target, d.source, await read(d.value), await asked(d.request)) for d in snapshot.deliveries
        ],
        "state": {
            repr(scope): {key: await read(keys[key]) for key in sorted(keys)}
            for scope, keys in sorted(snapshot.state.items(), key=lambda item: repr(item[0]))
        },
        "buffers": {
            repr(key): {source: await all_of(buffer[source]) for source in sorted(buffer)}
            for key, buffer in sorted(snapshot.buffers.items())
        },
        "outputs": [(output.executor_id, await read(output.value)) for output in snapshot.outputs],
        "requests": [await asked(request) for request in snapshot.requests.values()],
        "answered": sorted(snapshot.answered),
        "instances": dict(sorted(snapshot.instances.items())),
    }


async def stored_snapshot(storage: CheckpointStorage, info: CheckpointInfo) -> Snapshot:
    """The snapshot that a resume from a checkpoint would begin with."""
    head = await storage.catalog.head(info.run_id)
    blobs = storage.catalog.blobs(head.family)
    loaded = await load(storage.store, blobs, head, info.seq, Depth.ALL)
    encoder = storage.catalog.encoder(storage.catalog.codec_for(info.workflow_name))
    return snapshot_of(loaded.manifest, info.superstep - (info.phase is Phase.START), encoder, blobs)


# -- letting a run come to its end -----------------------------------------------------------------


async def lived(run: Run, answer: Answer, manner: str, answered: Collection[str] = ()) -> Story:
    """Let a run come to its end; ``answered`` are requests that were answered before, which it must know."""
    events: list[WorkflowEvent] = []
    answers: list[Given] = []

    async def respond(requests: list[PendingRequest]) -> None:
        latest = run.latest_checkpoint
        seq = latest.seq if latest is not None else 0
        answers.extend(Given(seq, request.request_id, answer(request)) for request in requests)
        await run.respond({request.request_id: answer(request) for request in requests})

    while True:
        async for event in run.watch_stream():
            events.append(event)
            if manner == AT_ONCE and isinstance(event, SuperStepStartedEvent) and run.pending_requests:
                await respond(run.pending_requests)
        if not run.pending_requests:
            break
        await _refuses_second_answers(run, [*answered, *(given.request_id for given in answers)])
        await respond(run.pending_requests[:1] if manner == ONE_BY_ONE else run.pending_requests)
    result = await run.wait_for_completion()
    state = await picture(run.snapshot)
    return Story(Ending(result.status, result.outputs, state, select_durable_events(events)), answers)


async def _refuses_second_answers(run: Run, answered: Collection[str]) -> None:
    for request_id in answered:
        try:
            await run.respond({request_id: 0})
        except RequestAlreadyAnswered:
            continue
        raise AssertionError(f"{request_id} was answered twice")


def compare(
    expected: Story, got: Story, start: CheckpointInfo, how: str, manner: str, left: Collection[str] = ()
) -> None:
    """The rest of a story must be what it is in the story that was not interrupted.

    Requests whose answers were ``left`` in the inbox of the run are not asked again.
    """
    compare_endings(expected.ending, got.ending, start, how)  # type: ignore[arg-type]
    if manner == AT_ONCE:
        return  # on which checkpoint the run stood is a matter of luck
    rest = [
        given[1:] for given in expected.answers if given.seq >= start.seq and given.request_id not in left
    ]
    assert [given[1:] for given in got.answers] == rest, f"{how}: answered were {got.answers}, not {rest}"


async def matches_the_store(run: Run, storage: CheckpointStorage) -> None:
    """What a run holds in memory must be what its last checkpoint holds."""
    latest = await storage.get_latest(run_id=run.run_id)
    assert latest is not None
    held, stored = await picture(run.snapshot), await picture(await stored_snapshot(storage, latest))
    for part in held:
        assert not differs(held[part], stored[part]), (
            f"{part}: the run holds {held[part]!r}, stored is {stored[part]!r}"
        )


# -- stopping it anywhere --------------------------------------------------------------------------


async def assert_goes_on(
    make: Make, message: Any, answer: Answer, manner: str, make_storage: Callable[[], CheckpointStorage]
) -> int:
    """Stop a run after every commit and go back to every checkpoint, each time with a newly made workflow."""
    async with make_storage() as storage:
        run = await make().start(message, storage=storage)
        expected = await lived(run, answer, manner)
        await matches_the_store(run, storage)
        compared = await _from_each_checkpoint(make, expected, answer, manner, storage, run.run_id)
        report = await storage.verify()
        assert report.ok, report.problems
    bare = await lived(await make().start(message), answer, manner)
    assert not differs(bare.ending, expected.ending), (
        "the run with a storage came to another end than without"
    )
    commits = 1
    while await _stopped(commits, make, message, expected, answer, manner, make_storage):
        commits += 1
    return compared + commits


async def _from_each_checkpoint(
    make: Make, expected: Story, answer: Answer, manner: str, storage: CheckpointStorage, run_id: str
) -> int:
    checkpoints = await storage.list_checkpoints(run_id=run_id)
    compared = 0
    for checkpoint in checkpoints:
        if manner == AT_ONCE and _answered_at_once(checkpoint, checkpoints):
            continue  # the answer came between two checkpoints of one commit: there it is not known yet
        back = await make().resume(checkpoint.checkpoint_id, storage=storage)
        story = await lived(back, answer, manner, _known(expected, checkpoint, manner))
        where = (
            f"from checkpoint {checkpoint.seq}, the {checkpoint.phase} of superstep {checkpoint.superstep}"
        )
        compare(expected, story, checkpoint, where, manner)
        await matches_the_store(back, storage)
        compared += 1
    return compared


def _answered_at_once(checkpoint: CheckpointInfo, checkpoints: Iterable[CheckpointInfo]) -> bool:
    return any(
        later.parent_id == checkpoint.checkpoint_id and later.cause is Cause.RESPONSE for later in checkpoints
    )


def _known(expected: Story, start: CheckpointInfo, manner: str) -> list[str]:
    """The requests whose answers a checkpoint holds."""
    if manner == AT_ONCE:
        return []
    return [given.request_id for given in expected.answers if given.seq < start.seq]


async def _stopped(
    commits: int,
    make: Make,
    message: Any,
    expected: Story,
    answer: Answer,
    manner: str,
    make_storage: Callable[[], CheckpointStorage],
) -> bool:
    """Let the store die after so many commits and go on; whether the run was stopped at all."""
    async with make_storage() as storage:
        store = storage.catalog.store
        storage.catalog.store = mortal = MortalStore(store, commits)
        run = await make().start(message, storage=storage)
        stopped = await _dies(run, answer, manner, mortal.death)
        storage.catalog.store = store
        latest = await storage.get_latest(run_id=run.run_id)
        assert latest is not None
        left = await answers_left(storage, run.run_id)
        resumed = await make().resume(run_id=run.run_id, storage=storage)
        story = await lived(resumed, answer, manner, [*_known(expected, latest, manner), *left])
        compare(expected, story, latest, f"stopped after commit {commits}", manner, left)
        assert not await answers_left(storage, run.run_id)
        await matches_the_store(resumed, storage)
        report = await storage.verify()
        assert report.ok, report.problems
    return stopped


async def answers_left(storage: CheckpointStorage, run_id: str) -> list[str]:
    """The requests whose answers lie in the inbox of a run."""
    encoder = storage.catalog.encoder(Codec())
    letters = [read_letter(letter, encoder) for letter in await storage.store.inbox(RunId(run_id))]
    return [letter.request_id for letter in letters if isinstance(letter, inbox.Answer)]


async def _dies(run: Run, answer: Answer, manner: str, death: StorageError) -> bool:
    try:
        await lived(run, answer, manner)
    except StorageError as error:
        if error is not death:
            raise
        # Who answers may be told of it before the run is, which goes on until then.
        with suppress(StorageError):
            await run.wait_for_completion()
        return True
    return False
