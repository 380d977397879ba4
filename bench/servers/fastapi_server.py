"""A bare FastAPI app with the same handler and the same streams, which stores nothing: what HTTP alone costs.

``python fastapi_server.py PORT``
"""

import asyncio
import sys
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI, Request
from starlette.responses import StreamingResponse

app = FastAPI()
answered = asyncio.Event()
_KEEP_ALIVE_SECONDS = 15.0


async def greet(name: str) -> str:
    return f"hello {name}"


@app.get("/ready")
async def show_ready() -> str:
    return "ready"


@app.post("/greet")
async def run(request: Request) -> dict[str, list[str]]:
    given = await request.json()
    return {"outputs": [await greet(given["input"])]}


@app.post("/answer")
async def answer() -> str:
    answered.set()
    return "answered"


@app.get("/events")
async def watch() -> StreamingResponse:
    async def frames() -> AsyncIterator[bytes]:
        yield b": here\n\n"
        while True:
            try:
                async with asyncio.timeout(_KEEP_ALIVE_SECONDS):
                    await answered.wait()
                break
            except TimeoutError:
                yield b": keep-alive\n\n"
        yield b'event: end\ndata: {"status": "completed"}\n\n'

    return StreamingResponse(frames(), media_type="text/event-stream")


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False)
