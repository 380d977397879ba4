"""Values of foreign classes, with excluded fields, and of classes that hold nothing, in runs of every store."""

import threading
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

import pytest

from holdfast import (
    Executor,
    StateKey,
    WorkflowBuilder,
    WorkflowContext,
    checkpointable,
    handler,
    response_handler,
)
from tests.support.durable import Place

pytestmark = pytest.mark.usefixtures("own_marks")


@checkpointable
class Ping: ...


@checkpointable(exclude=("lock",))
@dataclass(frozen=True)
class Answer:
    text: str
    lock: Any = None


class Ask(Executor):
    @handler
    async def ask(self, ping: Ping, ctx: WorkflowContext[Answer]) -> None:
        await ctx.queue_state_update("where", [IPv4Address("10.0.0.7")], scope_name="S")
        await ctx.send_message(Answer("kelp", threading.Lock()))


class Check(Executor):
    @handler
    async def check(self, answer: Answer, ctx: WorkflowContext) -> None:
        await ctx.request_info(answer, response_type=IPv4Address, request_id="where")

    @response_handler
    async def answered(self, answer: Answer, where: IPv4Address, ctx: WorkflowContext[None, object]) -> None:
        known = await ctx.read_state("where", scope_name="S")
        await ctx.yield_output((answer, [*known, where], Ping()))


async def test_a_run_keeps_them_through_messages_state_questions_and_a_resume(place: Place) -> None:
    checkpointable(IPv4Address, encode=str, decode=IPv4Address, name="Address")
    builder = WorkflowBuilder(name="Ask").set_start_executor(Ask).add_edge(Ask, Check)
    await builder.with_checkpointing(place.storage).build().run(Ping(), run_id="r")

    storage = await place.reopened()
    await storage.respond("r", {"where": IPv4Address("10.0.0.8")})
    run = await builder.with_checkpointing(storage).build().resume(run_id="r")
    (answer, addresses, ping), *_ = (await run.wait_for_completion()).outputs
    assert answer == Answer("kelp", None)
    assert addresses == [IPv4Address("10.0.0.7"), IPv4Address("10.0.0.8")]
    assert type(ping) is Ping
    assert (await storage.verify()).ok

    made = await storage.list_checkpoints(run_id="r")
    assert "Address(value='10.0.0.7')" in str(await storage.diff(made[0], made[-1]))


async def test_a_renamed_class_with_its_old_name_is_the_same_graph() -> None:
    def fingerprint(called: str, **given: Any) -> str:
        cls = type(called, (), {})
        checkpointable(encode=str, decode=str, **given)(cls)

        class Take(Executor):
            KEY = StateKey("k", cls)

            @handler(input=cls)
            async def take(self, message, ctx) -> None:
                pass

        return WorkflowBuilder(name="W").set_start_executor(Take).build().fingerprint

    assert fingerprint("Url") == fingerprint("Link", name="Url") != fingerprint("Link")
