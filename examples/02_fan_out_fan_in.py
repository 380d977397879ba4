"""Fan-out and fan-in: several reviewers read one document at the same time, an editor gets all their remarks.

``bind`` makes several executors of one class. The fan-in waits until each reviewer has sent something and delivers
one list, in the order of the sources: here the first reviewer is the slowest, and still comes first.
"""

import asyncio

from holdfast import Executor, Workflow, WorkflowBuilder, executor, handler

INPUT = "We guarantee a very quick refund. Send us your token."


class Reviewer(Executor):
    def __init__(self, id: str, words: tuple[str, ...], seconds: float) -> None:
        super().__init__(id)
        self.words = words
        self.seconds = seconds

    @handler
    async def review(self, document: str) -> str:
        await asyncio.sleep(self.seconds)
        found = [word for word in self.words if word in document.lower()]
        return f"{self.id}: {', '.join(found) or 'nothing'}"


@executor
def hand_out(document: str) -> str:
    return document


@executor
def edit(remarks: list[str]) -> str:
    return " | ".join(remarks)


legal = Reviewer.bind(id="legal", words=("guarantee", "refund"), seconds=0.05)
security = Reviewer.bind(id="security", words=("password", "token"), seconds=0.02)
style = Reviewer.bind(id="style", words=("very", "basically"), seconds=0.0)


def make_workflow() -> Workflow:
    return (
        WorkflowBuilder(name="Review")
        .set_start_executor(hand_out)
        .add_fan_out_edges(hand_out, [legal, security, style])
        .add_fan_in_edges([legal, security, style], edit)
        .build()
    )


if __name__ == "__main__":
    print(*make_workflow().run_sync(INPUT).outputs)

# Output:
# legal: guarantee, refund | security: token | style: very
