"""Events of runs as lines for people; imported when someone watches a run.

Each public event of ``holdfast`` has its words here; others, as those of teams, are shown by name with their fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.cli.output import paint, printable, shorten

Plain = Mapping[str, Any]

_LONGEST = 200


def render_event(event: Plain) -> str | None:
    """Return an event in the form of ``to_dict`` as one line; None for those that say nothing new to a person.

    >>> render_event({"event": "ExecutorInvokedEvent", "timestamp": "2026-01-01T10:20:30.5+00:00",
    ...               "executor_id": "fetch", "superstep": 1})
    '10:20:30  fetch begins'
    """
    name = event["event"]
    if name == "CheckpointSavedEvent":  # those of supersteps tell of it
        return None
    text = _TEXTS[name](event) if name in _TEXTS else f"{name} {shorten(event.get('fields', {}), _LONGEST)}"
    time = str(event["timestamp"] or "")[11:19]
    return f"{time or ' ' * 8}  {text}"


def _status(event: Plain) -> str:
    status = event["status"]
    waits = f" for {' and '.join(event['waiting_for'])}" if event["waiting_for"] else ""
    by = f", by {printable(event['by'])}" if event.get("by") else ""
    colour = {"failed": "red", "waiting": "yellow", "completed": "green"}.get(status)
    return paint(f"run is {status}{waits}{by}", colour)


def _error(event: Plain) -> str:
    error = event["error"]
    if not isinstance(error, dict):
        return printable(str(error))
    return printable(f"{error.get('$type', 'error')}: {error.get('$text', error)}")


def _warning(event: Plain) -> str:
    return paint(printable(f"{event['warning']['kind']}: {event['warning']['text']}"), "yellow")


def _request(event: Plain) -> str:
    request = event["request"]
    data = shorten(request["data"], _LONGEST)
    return paint(f"{request['executor_id']} asks {printable(request['request_id'])}: {data}", "yellow")


def _output(event: Plain) -> str:
    return paint(f"{event['executor_id']} gives out {shorten(event['data'], _LONGEST)}", "green")


def _failed(event: Plain) -> str:
    return paint(f"{event['executor_id']} failed (attempt {event['attempt']}): {_error(event)}", "red")


def _superstep(event: Plain) -> str:
    checkpoint = event.get("checkpoint")
    return f"superstep {event['superstep']} is done" + (
        f", checkpoint {checkpoint['seq']}" if checkpoint else ""
    )


def _agent_call(event: Plain) -> str:
    """Tell a call of an agent, which is an event of its own: agents are a layer that this one does not import."""
    call = event["fields"]
    who = printable(str(call["executor_id"]))
    what = "the model" if call["kind"] == "model" else f"the tool {printable(str(call['name']))}"
    spent = tokens_of(event)
    told = f", {spent:,} tokens" if spent else ""
    told += ", as recorded before" if call["replayed"] else ""
    if call["error"] is not None:
        return paint(f"{who} called {what}, which failed: {shorten(call['error'], _LONGEST)}", "red")
    return f"{who} called {what}{told}"


def tokens_of(event: Plain) -> int:
    """Return the tokens that an agent's call of a model took; those of a recorded one are not taken again."""
    call = event["fields"] if event["event"] == "AgentCallEvent" else {}
    usage = call.get("usage")
    return usage["input_tokens"] + usage["output_tokens"] if usage and not call["replayed"] else 0


_TEXTS: Mapping[str, Callable[[Plain], str]] = {
    "WorkflowStartedEvent": lambda event: f"run of {printable(event['workflow_name'])} begins",
    "WorkflowStatusEvent": _status,
    "WorkflowOutputEvent": _output,
    "WorkflowCompletedEvent": lambda event: "the workflow is complete",
    "WorkflowErrorEvent": lambda event: paint(_error(event), "red"),
    "WorkflowWarningEvent": _warning,
    "OutputDeltaEvent": lambda event: f"{event['executor_id']}: {shorten(event['data'], _LONGEST)}",
    "SuperStepStartedEvent": lambda event: f"superstep {event['superstep']} begins",
    "SuperStepCompletedEvent": _superstep,
    "ExecutorInvokedEvent": lambda event: f"{event['executor_id']} begins",
    "ExecutorCompletedEvent": lambda event: f"{event['executor_id']} is done",
    "ExecutorFailedEvent": _failed,
    "RequestInfoEvent": _request,
    "AgentCallEvent": _agent_call,
}
