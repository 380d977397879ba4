"""Events: watch a run while it goes on, let handlers report live, and leave when you have seen enough.

``run_stream`` yields the events of a run as they happen. A handler adds events of its own; a provisional one is
shown at once, while the handler still works, as for the words of an answer that is being written. Leaving the
stream stops the run.
"""

import asyncio
from dataclasses import dataclass

from holdfast import (
    Executor,
    SuperStepStartedEvent,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowOutputEvent,
    executor,
    handler,
)

INPUT = "Why?"


@dataclass
class Word(WorkflowEvent):
    text: str


class Agent(Executor):
    @handler
    async def answer(self, question: str, ctx: WorkflowContext[str]) -> None:
        words = f"{question} A deploy broke it.".split()
        for word in words:
            await ctx.add_event(Word(word, provisional=True))
            await asyncio.sleep(0)  # a model would think here
        await ctx.send_message(" ".join(words))


@executor
def publish(answer: str) -> str:
    return f"published: {answer}"


def make_workflow() -> Workflow:
    return WorkflowBuilder(name="Answer").set_start_executor(Agent).add_edge(Agent, publish).build()


async def main() -> None:
    workflow = make_workflow()
    async for event in workflow.run_stream(INPUT):
        match event:
            case SuperStepStartedEvent():
                print(f"superstep {event.superstep}")
            case Word():
                print(f"  live: {event.text}")
            case WorkflowOutputEvent():
                print(f"  output of {event.executor_id}: {event.data}")

    async with workflow.run_stream("And who?") as stream:
        async for event in stream:
            if isinstance(event, Word) and event.text == "deploy":
                break
    print(f"left in superstep {event.superstep}: the run is {stream.run.status}")


if __name__ == "__main__":
    asyncio.run(main())

# Output:
# superstep 1
#   live: Why?
#   live: A
#   live: deploy
#   live: broke
#   live: it.
# superstep 2
#   output of publish: published: Why? A deploy broke it.
# left in superstep 1: the run is stopped
