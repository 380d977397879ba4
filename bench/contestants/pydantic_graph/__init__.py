"""pydantic-graph: a `GraphBuilder` of steps, iterated with `graph.iter`. Since 2.0 it has no persistence."""

# Its packages are only in its own environment, so its types are unknown where this file is checked.
# mypy: disable-error-code="import-not-found, misc, untyped-decorator"

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

from pydantic_graph import EndMarker, GraphBuilder, StepContext, reduce_list_append

from bench.contestants import Contestant, Entry, Job, Outcome, Run
from bench.rounds import number_of as round_of


async def step(ctx: StepContext[None, None, int]) -> int:
    """One superstep of the chain."""
    return ctx.inputs + 1


async def consume(graph: Any) -> tuple[Any, int]:
    """One run with all its events: the output, and how many events there were."""
    events, output = 0, None
    async with graph.iter(inputs=0, infer_name=False) as run:
        async for event in run:
            events += 1
            if isinstance(event, EndMarker):
                output = event.value
    return output, events


@asynccontextmanager
async def chain(job: Job) -> AsyncIterator[Run]:
    """W1."""
    count = job.params["supersteps"]
    builder = GraphBuilder(name="chain", input_type=int, output_type=int, auto_instrument=False)
    steps = [builder.step(step, node_id=f"step-{index}") for index in range(count)]
    ends = [builder.start_node, *steps, builder.end_node]
    for source, target in pairwise(ends):
        builder.add(builder.edge_from(source).to(target))
    graph = builder.build()

    async def run() -> Outcome:
        output, events = await consume(graph)
        return Outcome(output, output, events)

    yield run


def goes_on(found: Any) -> bool:
    """Whether there is another round."""
    return found[0] == "next"


def number_of(ctx: StepContext[None, None, tuple[str, int]]) -> int:
    """What the hub says."""
    return ctx.inputs[1]


@asynccontextmanager
async def fan(job: Job) -> AsyncIterator[Run]:
    """W5: a list of jobs, which an edge maps over one step; a join collects the answers. One fork for a join, so that
    the list is made in a step of its own."""
    width, rounds = job.params["width"], job.params["rounds"]
    builder = GraphBuilder(name="fan", input_type=int, output_type=int, auto_instrument=False)

    @builder.step
    async def spread(ctx: StepContext[None, None, int]) -> list[tuple[int, int]]:
        return [(ctx.inputs, index) for index in range(width)]

    @builder.step
    async def work(ctx: StepContext[None, None, tuple[int, int]]) -> int:
        number, index = ctx.inputs
        return number + index

    @builder.step
    async def hub(ctx: StepContext[None, None, list[int]]) -> tuple[str, int]:
        number = round_of(ctx.inputs, width)
        return ("next", number + 1) if number + 1 < rounds else ("total", sum(ctx.inputs))

    collect = builder.join(reduce_list_append, initial_factory=list[int])
    builder.add(
        builder.edge_from(builder.start_node).to(spread),
        builder.edge_from(spread).map().to(work),
        builder.edge_from(work).to(collect),
        builder.edge_from(collect).to(hub),
        builder.edge_from(hub).to(
            builder.decision()
            .branch(builder.match(tuple, matches=goes_on).transform(number_of).to(spread))
            .branch(builder.match(tuple).transform(number_of).to(builder.end_node))
        ),
    )
    graph = builder.build()

    async def run() -> Outcome:
        output, events = await consume(graph)
        return Outcome(output, 2 * rounds + 1, events)

    yield run


def contestant(_: str) -> Contestant:
    """pydantic-graph, without instrumentation."""
    entries = {
        "W1": Entry(chain, "a chain of `GraphBuilder.step`s; `graph.iter(...)`; `auto_instrument=False`"),
        "W5": Entry(
            fan, "an edge that maps over a step, `join(reduce_list_append)`, a decision; `graph.iter(...)`"
        ),
    }
    return Contestant(
        ("pydantic-graph", "pydantic"), entries, missing={"*": "it has no persistence since 2.0"}
    )
