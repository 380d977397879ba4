"""A team of two agents whose runs survive: the review fails, and the next process goes on without another draft."""

import asyncio

from holdfast.agents import AgentWorkflow

outage = True


def draft(prompt: str) -> str:
    print("drafting")
    return f"{prompt} grows half a metre a day."


def review(prompt: str) -> str:
    if outage:
        raise ConnectionError("the model is down")
    print("reviewing")
    return prompt.replace("half a metre", "0.5 m")


def build() -> AgentWorkflow:
    return (
        AgentWorkflow.create()
        .with_name("DurableReview")
        .with_checkpointing()
        .with_json_workflow_store(
            "App_Data/workflows"
        )  # the newest checkpoint of each run, and the definition
        .add_agent("draft", draft, lambda node: node.with_output_key("draft"))
        .add_agent("review", review, lambda node: node.with_input_key("draft"))
        .from_("draft")
        .to("review")
        .build()
    )


async def main() -> None:
    global outage
    result = await build().run("Kelp", run_id="r1")
    print(result.success, result.status)
    outage = False
    workflow = build()
    result = await workflow.result_of(await workflow.resume(run_id="r1"))
    print(result.success, result.final_answer)


asyncio.run(main())

# Output:
# drafting
# False failed
# reviewing
# True Kelp grows 0.5 m a day.
