"""What LangGraph's development server serves: a graph of one node, and one whose node waits."""

import asyncio
from typing import TypedDict

from langgraph.graph import END, START, StateGraph


class State(TypedDict, total=False):
    name: str
    greeting: str
    seconds: float


async def greet(state: State) -> State:
    return {"greeting": f"hello {state['name']}"}


async def wait(state: State) -> State:
    await asyncio.sleep(state["seconds"])
    return {"greeting": "late"}


def make(node) -> StateGraph:
    graph = StateGraph(State)
    graph.add_node("only", node)
    graph.add_edge(START, "only")
    graph.add_edge("only", END)
    return graph


greeting = make(greet).compile()
waiting = make(wait).compile()
