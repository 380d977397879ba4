"""The forms of requests and replies, which the OpenAPI document describes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

StatusName = Literal["running", "completed", "waiting", "failed", "cancelled", "stopped"]


class ReplyForm(BaseModel):
    """A reply; later versions may add fields."""

    model_config = ConfigDict(extra="allow")


class ProblemForm(ReplyForm):
    """A refusal or failure (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str


class ForkOriginForm(ReplyForm):
    """The run and the checkpoint at which a fork began."""

    run_id: str
    checkpoint_id: str


class RunForm(ReplyForm):
    """A run as lists show it."""

    run_id: str
    workflow_name: str
    status: StatusName
    checkpoint_id: str = Field(description="The checkpoint that the run stands on.")
    seq: int
    created: datetime
    updated: datetime
    interrupted: bool
    reason: str
    wake_at: datetime | None
    waiting_for: list[str]
    by: str
    traceback: str = Field(description="Why it failed, for people; empty without the scope admin.")
    forked_from: ForkOriginForm | None
    restored_at: int | None


class RequestForm(ReplyForm):
    """A request of a run that waits for an answer."""

    run_id: str
    workflow_name: str
    request_id: str
    executor_id: str
    data: Any
    response_schema: dict[str, Any]
    asked_at: datetime
    expires_at: datetime | None


class RunResultForm(RunForm):
    """A run with its outputs, and the requests that wait for answers."""

    outputs: list[Any]
    requests: list[RequestForm]


class RunPage(ReplyForm):
    """Some runs; ``next`` is the cursor of the next page."""

    runs: list[RunForm]
    next: str | None


class RequestPage(ReplyForm):
    """Some requests; ``next`` is the cursor of the next page."""

    requests: list[RequestForm]
    next: str | None


class CheckpointForm(ReplyForm):
    """A checkpoint without its values."""

    checkpoint_id: str
    run_id: str
    workflow_name: str
    seq: int
    superstep: int
    phase: Literal["start", "end"]
    cause: str
    by: str | None
    parent_id: str | None
    timestamp: datetime
    status: StatusName
    waiting_for: list[str]
    new_bytes: int
    message_count: int
    request_count: int
    tags: list[str]
    tagged_by: dict[str, str]
    superseded_by: str | None


class CheckpointPage(ReplyForm):
    """Some checkpoints, oldest first; ``next`` is the cursor of the next page."""

    checkpoints: list[CheckpointForm]
    next: str | None


class PartForm(ReplyForm):
    """A value that a checkpoint holds: the arguments of ``/values`` that give it, and its size as stored."""

    part: Literal["state", "executor", "message", "request", "output"]
    name: str
    scope: str | None = None
    bytes: int | None = None


class CheckpointPartsForm(ReplyForm):
    """A checkpoint and the values that it holds."""

    checkpoint: CheckpointForm
    parts: list[PartForm]


class TreeForm(ReplyForm):
    """A run, the one that it descends from, all forks of that, and some of their checkpoints."""

    runs: list[RunForm]
    checkpoints: list[CheckpointForm]
    next: str | None


class WorkflowForm(ReplyForm):
    """A workflow that is served here."""

    name: str
    fingerprint: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]


class WorkflowPage(ReplyForm):
    """All workflows that are served here."""

    workflows: list[WorkflowForm]


class StoreForm(ReplyForm):
    """The store and what is in it."""

    store_id: str
    format: str
    runs: dict[str, int] = Field(description="The number of runs by status.")
    active: int = Field(description="The number of runs that this process drives now.")
    problems: dict[str, str] = Field(
        description="Why runs could not go on here, by run id; the last hundred."
    )
    sizes: dict[str, Any] | None


class BodyForm(BaseModel):
    """The body of a request; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class StartBody(BodyForm):
    """Starts a run."""

    input: Any
    run_id: str | None = Field(None, min_length=1, max_length=200)
    if_exists: Literal["raise", "attach", "continue"] = "raise"


class ResponsesBody(BodyForm):
    """Answers requests of a run, by their ids; all or none."""

    responses: dict[str, Any] = Field(min_length=1)


class MessageBody(BodyForm):
    """Sends a further message to a run."""

    message: Any
    target_id: str | None = Field(None, min_length=1, max_length=200)


class ResumeBody(BodyForm):
    """Goes on with a run, from one of its checkpoints if one is given."""

    checkpoint_id: str | None = None
    take_over: bool = Field(
        False, description="Also if another process seems to drive it; needs the scope admin."
    )
    allow_graph_change: bool = Field(False, description="Also if the graph changed; needs the scope admin.")


class StateEdit(BodyForm):
    """Another value of shared state."""

    key: str = Field(min_length=1)
    value: Any
    scope: str | None = Field(None, min_length=1)


class SentMessage(BodyForm):
    """A further message."""

    target_id: str
    message: Any


class EditsBody(BodyForm):
    """Edits with which a fork begins."""

    state: list[StateEdit] = []
    messages: dict[str, Any] = Field(
        default={}, description="Other messages, by their places in the checkpoint."
    )
    drop_messages: list[int] = []
    send: list[SentMessage] = []
    requests: dict[str, Any] = Field(default={}, description="Other data of requests, by their ids.")
    drop_requests: list[str] = []
    responses: dict[str, Any] = {}


class ForkBody(BodyForm):
    """Begins a new run at a checkpoint of this one, at the last if none is given."""

    checkpoint_id: str | None = None
    run_id: str | None = Field(None, min_length=1, max_length=200)
    edits: EditsBody = Field(default_factory=EditsBody)


TagName = Annotated[str, Field(min_length=1, max_length=200)]


class TagsBody(BodyForm):
    """Gives a checkpoint tags, and takes others from it."""

    add: list[TagName] = []
    remove: list[TagName] = []


class NoBody(BodyForm):
    """Needs no fields."""
