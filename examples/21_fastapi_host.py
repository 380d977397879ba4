"""A web service: a FastAPI app that submits runs, streams their events and takes answers, and drives the runs itself.

The app keeps nothing of a run in memory, so its process may be killed at any time: ``main`` does that while a run waits
for an answer. Serve it yourself with ``uvicorn --app-dir examples 21_fastapi_host:app``.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
from fastapi import Body, Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse, StreamingResponse

from holdfast import (
    CheckpointStorage,
    Executor,
    HoldfastError,
    Host,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    executor,
    handler,
    response_handler,
)


@dataclass
class Refund:
    customer: str
    amount: int


@dataclass
class Decision:
    approved: bool
    remark: str = ""


class Approve(Executor):
    @handler
    async def ask(self, refund: Refund, ctx: WorkflowContext) -> None:
        await ctx.request_info(refund, response_type=Decision)

    @response_handler
    async def decided(self, refund: Refund, decision: Decision, ctx: WorkflowContext[Refund, str]) -> None:
        if decision.approved:
            await ctx.send_message(refund)
        else:
            await ctx.yield_output(f"{refund.customer} gets nothing: {decision.remark}")


@executor(id="pay")
async def pay(refund: Refund) -> str:
    return f"{refund.customer} gets {refund.amount}"


def make_workflow(storage: CheckpointStorage | None = None) -> Workflow:
    builder = WorkflowBuilder(name="Refunds").set_start_executor(Approve).add_edge(Approve, pay)
    return (builder if storage is None else builder.with_checkpointing(storage)).build()


Json = dict[str, Any]
STATUS = {"not_found": 404, "conflict": 409, "invalid": 422, "limit": 429}
storage = SqliteCheckpointStorage("refunds.db")
workflow = make_workflow(storage)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with storage, Host(storage, workflow, poll=0.1):
        yield


app = FastAPI(lifespan=lifespan)


@app.exception_handler(HoldfastError)
async def refuse(request: Request, error: HoldfastError) -> JSONResponse:
    if error.kind not in STATUS:
        raise error  # status 500, and a traceback in the log of the server
    return JSONResponse({"error": type(error).__name__, "detail": str(error)}, STATUS[error.kind])


@app.post("/runs", status_code=202)
async def submit(refund: Refund, run_id: str | None = None, by: str = "web") -> Json:
    return await show(await workflow.submit(refund, run_id, by=by))


@app.get("/runs")
async def list_runs(status: str | None = None) -> list[Json]:
    return [run.to_dict() for run in await storage.list_runs(status=status, newest_first=True)]


@app.get("/runs/{run_id}")
async def show(run_id: str) -> Json:
    return (await storage.get_run(run_id)).to_dict()


@app.get("/runs/{run_id}/events", dependencies=[Depends(show)])
async def watch(run_id: str, last_event_id: Annotated[str | None, Header()] = None) -> StreamingResponse:
    events = storage.watch(run_id, last_event_id, follow=True)
    return StreamingResponse(as_sse(events), media_type="text/event-stream")


async def as_sse(events: AsyncIterator[WorkflowEvent]) -> AsyncIterator[str]:
    async for event in events:
        mark = f"id: {event.event_id}\n" if event.event_id else ""
        yield f"{mark}data: {json.dumps(event.to_dict())}\n\n"


@app.get("/requests")
async def list_requests(run_id: str | None = None) -> list[Json]:
    return [request.to_dict() for request in await storage.list_requests(run_id=run_id)]


@app.post("/runs/{run_id}/requests/{request_id}")
async def respond(run_id: str, request_id: str, answer: Annotated[Any, Body()], by: str = "web") -> Json:
    return (await storage.respond(run_id, {request_id: answer}, by=by)).to_dict()


@app.post("/runs/{run_id}/cancel")
async def cancel(run_id: str, by: str = "web") -> Json:
    return (await storage.cancel(run_id, by=by)).to_dict()


INPUT = Refund("Ada", 250)
SHOWN = ("RequestInfoEvent", "WorkflowOutputEvent", "WorkflowCompletedEvent")


@contextmanager
def serve(folder: str) -> Iterator[httpx.Client]:
    """Serve the app in a process of its own, give a client of it, and kill the process at the end."""
    this = Path(__file__)
    command = [sys.executable, "-m", "uvicorn", f"--app-dir={this.parent}", f"{this.stem}:app"]
    options = ["--port=0", "--no-access-log"]
    with subprocess.Popen([*command, *options], cwd=folder, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            url = next(found[0] for line in server.stderr if (found := re.search(r"http://\S+", line)))
            with httpx.Client(base_url=url) as client:
                yield client
        finally:
            server.kill()


def follow_run(client: httpx.Client, last: str | None, until: str) -> str:
    """Print the events behind the last one that was seen, until a certain one comes; return its id."""
    headers = {} if last is None else {"Last-Event-ID": last}
    with client.stream("GET", "/runs/refund-1/events", headers=headers) as response:
        for line in response.iter_lines():
            name, _, value = line.partition(": ")
            if name == "data" and (event := json.loads(value))["event"] in SHOWN:
                print(event["event_id"], event["event"])
                if event["event"] == until:
                    return str(event["event_id"])
    raise ConnectionError(f"the stream ended before {until}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with serve(folder) as client:
            client.post("/runs", params={"run_id": "refund-1"}, json=asdict(INPUT))
            last = follow_run(client, None, until="RequestInfoEvent")
        print("the server was killed, another one is started")
        with serve(folder) as client:
            (request,) = client.get("/requests").json()
            for decision in ({"approved": "perhaps"}, {"approved": True}):
                path = f"/runs/refund-1/requests/{request['request_id']}"
                reply = client.post(path, json=decision, params={"by": "kim"})
                print(reply.status_code, reply.json().get("error", "taken"))
            follow_run(client, last, until="WorkflowCompletedEvent")
            print(client.get("/runs/refund-2").status_code)


if __name__ == "__main__":
    main()

# Output:
# 2.1 RequestInfoEvent
# the server was killed, another one is started
# 422 InvalidResponse
# 200 taken
# 6.1 WorkflowOutputEvent
# 6.5 WorkflowCompletedEvent
# 404
