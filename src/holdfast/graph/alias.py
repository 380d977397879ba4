"""Aliases: the ids that checkpoints have for executors that were renamed since."""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.errors import GraphError
from holdfast.graph.graph import Graph
from holdfast.ids import ExecutorId

# A name as ``repr`` writes it in the key of a buffer.
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")


def check_aliases(graph: Graph) -> None:
    """Raise ``GraphError`` for an alias that cannot be meant."""
    for old, new in graph.aliases.items():
        if new not in graph.executors:
            known = ", ".join(repr(str(executor_id)) for executor_id in graph.executors)
            raise GraphError(
                f"with_alias({old!r}, ...) names the executor {new!r}, which is not in the workflow; known are {known}"
            )
        if old in graph.executors:
            raise GraphError(
                f"with_alias({old!r}, ...): {old!r} is an executor of the workflow, so what checkpoints hold for it is "
                f"its own; remove the alias, or give that executor another id"
            )


def resolve_address(graph: Graph, address: str) -> str:
    """Return the current address of the executor that a checkpoint calls ``address``.

    Each segment that is an alias where it stands is replaced; what is unknown stays as it is.

    >>> from holdfast import WorkflowBuilder, WorkflowExecutor, executor
    >>> @executor
    ... def draft(text: str) -> str:
    ...     return text
    >>> inner = WorkflowBuilder(name="Inner").set_start_executor(draft).with_alias("write", draft).build()
    >>> legal = WorkflowExecutor(inner, id="legal")
    >>> graph = WorkflowBuilder(name="Outer").set_start_executor(legal).with_alias("review", legal).build().graph
    >>> [resolve_address(graph, address) for address in ("review#2/write", "legal#2/draft", "write")]
    ['legal#2/draft', 'legal#2/draft', 'write']
    """
    here: Graph | None = graph
    segments: list[str] = []
    for segment in address.split("/"):
        name, mark, number = segment.partition("#")
        if here is not None:
            name = here.aliases.get(ExecutorId(name), name)
            spec = here.executors.get(ExecutorId(name))
            here = spec.nested if spec is not None else None
        segments.append(name + mark + number)
    return "/".join(segments)


def resolve_path(graph: Graph, path: str) -> str:
    """Return the current path of the nested graph that a checkpoint has at ``path``; "" is the outermost.

    >>> from holdfast import WorkflowBuilder, WorkflowExecutor, executor
    >>> @executor
    ... def draft(text: str) -> str:
    ...     return text
    >>> inner = WorkflowBuilder(name="Inner").set_start_executor(draft).build()
    >>> legal = WorkflowExecutor(inner, id="legal")
    >>> graph = WorkflowBuilder(name="Outer").set_start_executor(legal).with_alias("review", legal).build().graph
    >>> resolve_path(graph, "review#2/"), resolve_path(graph, "")
    ('legal#2/', '')
    """
    # The segment behind the last slash is empty, and no executor has an empty id.
    return resolve_address(graph, path)


def resolve_source(graph: Graph, path: str, source: str) -> str:
    """Return the current id of a fan-in's source, in the graph that a checkpoint has at ``path``."""
    return _aliases_at(graph, path).get(ExecutorId(source), source)


def resolve_buffer_key(graph: Graph, path: str, fan_in: str) -> str:
    """Return the key of a fan-in's buffer with current ids, in the graph that a checkpoint has at ``path``.

    >>> from holdfast import WorkflowBuilder, executor
    >>> @executor
    ... def read(text: str) -> str:
    ...     return text
    >>> @executor
    ... def join(texts: list[str]) -> str:
    ...     return ", ".join(texts)
    >>> builder = WorkflowBuilder(name="Join").set_start_executor(read).add_fan_in_edges([read], join)
    >>> resolve_buffer_key(builder.with_alias("fetch", read).build().graph, "", "'fetch' -> 'join'")
    "'read' -> 'join'"
    """
    names = {repr(str(old)): repr(str(new)) for old, new in _aliases_at(graph, path).items()}
    return _QUOTED.sub(lambda quoted: names.get(quoted[0], quoted[0]), fan_in) if names else fan_in


def _aliases_at(graph: Graph, path: str) -> Mapping[ExecutorId, ExecutorId]:
    try:
        return graph.at(resolve_path(graph, path)).aliases
    except KeyError:  # there is no such graph
        return {}
