"""The outcome of the other decision: back to the checkpoint before it, and on from there as a fork."""

from dataclasses import dataclass

from holdfast import Cause, Checkpoint, CheckpointStorage, Run, Workflow
from holdfast.demo.workflow import INCIDENT, OTHERWISE


@dataclass(frozen=True)
class DecisionOutcome:
    """The outcome of one of the two decisions."""

    run_id: str
    paged: bool
    decision: str
    checkpoints: int
    added: int
    """The bytes that its checkpoints added to the storage."""
    state: int
    """The size of its shared state, in bytes."""


@dataclass(frozen=True)
class DecisionOutcomes:
    """Both of them, and the checkpoint where they part."""

    before: Checkpoint
    decided: DecisionOutcome
    otherwise: DecisionOutcome


async def both_decisions(workflow: Workflow, storage: CheckpointStorage, run: Run) -> DecisionOutcomes | None:
    """Take the decision that was not taken, in a fork; None if nobody was asked.

    All that is needed is in the storage, so it makes no difference which process asked, or began this already.
    """
    made = await storage.list_checkpoints(run_id=INCIDENT)
    answers = [checkpoint for checkpoint in made if checkpoint.cause is Cause.RESPONSE]
    if not answers:
        return None
    (before,) = [checkpoint for checkpoint in made if checkpoint.checkpoint_id == answers[0].parent_id]
    decided = _outcome(run, made)
    fork = await _fork_at(before, workflow, storage)
    try:
        await fork.wait_for_completion()
        if fork.pending_requests:
            await fork.respond({request.request_id: not decided.paged for request in fork.pending_requests})
            await fork.wait_for_completion()
        otherwise = _outcome(fork, await storage.list_checkpoints(run_id=OTHERWISE))
    finally:
        await fork.close()
    return DecisionOutcomes(before, decided, otherwise)


async def _fork_at(before: Checkpoint, workflow: Workflow, storage: CheckpointStorage) -> Run:
    if any(run.run_id == OTHERWISE for run in await storage.list_runs()):
        return await workflow.resume(run_id=OTHERWISE)  # a process that was stopped has begun it
    return await workflow.fork(before, run_id=OTHERWISE)


def _outcome(run: Run, made: list[Checkpoint]) -> DecisionOutcome:
    return DecisionOutcome(
        run.run_id,
        # Who gets a message can be told without reading it.
        any(message.target_id == "PageOnCall" for checkpoint in made for message in checkpoint.messages),
        "; ".join(run.result().outputs),
        len(made),
        sum(checkpoint.new_bytes for checkpoint in made),
        state_size(made[-1]),
    )


def state_size(checkpoint: Checkpoint) -> int:
    """Return the size of the shared state of a checkpoint, in bytes."""
    return sum(sum(scope.sizes().values()) for scope in checkpoint.scopes.values())
