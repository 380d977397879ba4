"""Definitions of teams: written and read again, edited by hand, and refused with file and line."""

import json
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from holdfast import GraphError, InMemoryCheckpointStorage, Retention, RetryPolicy
from holdfast.agents import (
    AgentRegistry,
    AgentRequest,
    AgentWorkflow,
    AgentWorkflowBuilder,
    Budget,
    Conversation,
    DefinitionError,
    EdgeCondition,
    InMemorySessionStore,
    Price,
    definition_schema,
    save_config,
)
from holdfast.checkpoint.retention import MultiAgentCheckpointRetention


@dataclass
class Verdict:
    score: int


def write(prompt: str) -> str:
    return f"text about {prompt}"


def judge(request: AgentRequest) -> Verdict:
    return Verdict(len(request.prompt))


HERE = __name__
REGISTRY = AgentRegistry({"writer": write, "judge": judge}, {f"{HERE}:Verdict": Verdict})


def everything(folder: Path) -> AgentWorkflowBuilder:
    """Return a team that uses every option that a definition has."""
    return (
        AgentWorkflow.create()
        .with_name("Everything")
        .with_json_workflow_store(folder, MultiAgentCheckpointRetention.FULL_HISTORY)
        .with_in_memory_session_store()
        .with_conversation(Conversation.thread_per_agent("kim"))
        .with_recording()
        .with_max_iterations(4)
        .with_timeout(60)
        .with_budget(Budget(tokens=1000, cost=0.5, prices={"m": Price(1.0, 2.0)}))
        .with_rate_limit(longest_pause=3, model_attempts=2)
        .add_router_agent("route", write, {"write": "writes", "judge": "judges"}, default="write", reference="writer")
        .add_agent(
            "write",
            write,
            lambda node: (
                node.with_input_template("{{request}} in {{tone}}")
                .with_context({"tone": "rhyme", "lengths": [1, 2]})
                .with_instructions("Be brief.")
                .with_output_key("text")
                .with_timeout(5)
                .with_retry(policy=RetryPolicy(attempts=2, backoff=0.1), transient_only=True)
                .on_error_fallback("spare")
                .with_max_concurrent(3)
                .requires_tool_approval(["refund"], message="ok?", timeout=60)
                .with_budget(Budget(calls=3, name="writing"))
            ),
            reference="writer",
        )
        .add_agent(
            "judge",
            judge,
            lambda node: (
                node.structured_output(Verdict)
                .with_input_key("text")
                .on_error_skip()
                .requires_approval(
                    ~EdgeCondition.test("contains_any", "score", [1]), timeout=5, on_timeout="wait", message="?"
                )
            ),
            reference="judge",
        )
        .add_agent("spare", write, on_error="isolate", reference="writer")
        .from_("START").to("route")
        .from_("write").to("judge").when(EdgeCondition.test("exists", "text") | EdgeCondition.always())
        .from_("judge").to("write").when_less_than("score", 3)
        .from_("judge", "spare").to("END").when_exists("score")
    )  # fmt: skip


@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_a_definition_comes_back_exactly(ending: str, tmp_path: Path) -> None:
    exported = everything(tmp_path / "store").build().export_config()
    jsonschema.validate(exported, definition_schema())
    file = tmp_path / f"team.{ending}"
    save_config(exported, file)
    again = AgentWorkflow.from_file(file, REGISTRY).build()
    assert again.export_config() == exported
    assert again.fingerprint == everything(tmp_path / "store").build().fingerprint
    assert AgentWorkflow.from_config(exported, REGISTRY).build().export_config() == exported


async def test_stores_that_the_program_gives_are_asked_for_again(tmp_path: Path) -> None:
    """An export drops neither checkpoints nor conversations, also where it cannot say where they are kept."""

    def add_stores(builder: AgentWorkflowBuilder) -> AgentWorkflowBuilder:
        return builder.with_checkpointing(InMemoryCheckpointStorage()).with_session_store(
            InMemorySessionStore()
        )

    builder = AgentWorkflow.create().with_name("One").add_agent("a", write, reference="writer")
    builder.with_conversation(Conversation.shared_thread())
    exported = add_stores(builder).build().export_config()
    jsonschema.validate(exported, definition_schema())
    assert (exported["store"], exported["session_store"]) == ({"kind": "given"}, {"kind": "given"})
    file = tmp_path / "team.yaml"
    save_config(exported, file)
    with pytest.raises(GraphError, match="needs a session store"):
        AgentWorkflow.from_file(file, REGISTRY).build()
    with pytest.raises(GraphError, match=r"with_checkpointing\(\) needs a store"):
        AgentWorkflow.from_file(file, REGISTRY).with_session_store(InMemorySessionStore()).build()
    again = add_stores(AgentWorkflow.from_file(file, REGISTRY)).build()
    assert again.export_config() == exported
    assert (await again.run("kelp")).success


@pytest.mark.parametrize(
    "retention", [Retention.latest_only(), Retention.full_history(), Retention.keep_last(3)]
)
def test_retention_comes_back(retention: Retention, tmp_path: Path) -> None:
    for name in ("with_in_memory_workflow_store", "with_json_workflow_store"):
        builder = AgentWorkflow.create().with_name("One").add_agent("a", write, reference="writer")
        given = (retention,) if "memory" in name else (tmp_path, retention)
        exported = getattr(builder, name)(*given).build().export_config()
        assert exported["store"]["retention"] == (retention.text() or "full_history")
        assert AgentWorkflow.from_config(exported, REGISTRY).build().export_config() == exported


async def test_a_definition_is_edited_by_hand_and_run(tmp_path: Path) -> None:
    workflow = AgentWorkflow.create().with_name("One").add_agent("a", write, reference="writer").build()
    file = tmp_path / "team.yaml"
    save_config(workflow.export_config(), file)
    file.write_text(
        file.read_text().replace(
            "edges: []",
            "  b:\n    agent: writer  # another one\n    input_key: answer\nedges:\n- {from: a, to: b}",
        )
    )
    edited = AgentWorkflow.from_file(file, REGISTRY).build()
    assert (await edited.run("kelp")).final_answer == "text about text about kelp"


def test_what_a_file_names_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("open('ran', 'w').close()\ndef agent(prompt): return prompt\n")
    (tmp_path / "team.json").write_text('{"format": 1, "agents": {"a": {"agent": "evil:agent"}}}')
    program = """if True:
        import sys
        from holdfast.agents import AgentRegistry, AgentWorkflow
        AgentWorkflow.from_file("team.json", AgentRegistry(allow=sys.argv[1:])).build()
    """

    def load(*allowed: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", program, *allowed]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    refused = load()
    assert "team.json:1: agents.a.agent: the module of 'evil:agent' is not allowed" in refused.stderr
    assert not (tmp_path / "ran").exists()
    assert load("evil").returncode == 0
    assert (tmp_path / "ran").exists()


def test_functions_are_refused_by_their_place() -> None:
    team = AgentWorkflow.create().with_name("T").add_agent("a", write).add_agent("b", write)
    predicate = team.from_("a").to("b").when(lambda outputs: True).build()
    with pytest.raises(GraphError, match=r"edges\.0\.when is the function .*<lambda>"):
        predicate.export_config()
    nameless = AgentWorkflow.create().with_name("T").add_agent("a", lambda prompt: prompt).build()
    with pytest.raises(GraphError, match="its agent 'a' has no name"):
        nameless.export_config()


def test_an_editor_finds_the_schema(tmp_path: Path) -> None:
    file = tmp_path / "team.json"
    file.write_text('{"$schema": "./team.schema.json", "format": 1, "agents": {"a": {"agent": "writer"}}}')
    workflow = AgentWorkflow.from_file(file, REGISTRY).build()
    assert "$schema" not in workflow.export_config()
    jsonschema.validate(json.loads(file.read_text()), definition_schema())


def test_a_definition_takes_the_options_of_a_retry_policy() -> None:
    agent = definition_schema()["properties"]["agents"]["additionalProperties"]
    options = [one.name for one in fields(RetryPolicy) if one.name != "retry_on"]  # exceptions are no JSON
    assert list(agent["properties"]["retry"]["properties"]) == [*options, "transient_only"]


HEAD = """format: 1
agents:
  a:
    agent: writer
  b:
    agent: writer
"""

WRONG_YAML = [
    ("[1, 2]", 1, "a definition is an object"),
    ("a: [", 1, "this is no YAML"),
    ("format: 1\n", 1, "'agents' is missing"),
    ("format: 2\nagents: {a: {agent: writer}}\n", 1, "format:"),
    (HEAD.replace("agents:", "agnets:"), 2, "there is no 'agnets' here"),
    (HEAD + "    tiemout: 3\n", 7, "agents.b.tiemout: there is no 'tiemout'"),
    (HEAD + "    timeout: soon\n", 7, "agents.b.timeout: a string, not a number"),
    (HEAD + "    timeout: -1\n", 7, "agents.b.timeout"),
    (HEAD.replace("agent: writer\n  b", "agent: nobody\n  b"), 4, "'nobody' is not registered"),
    (HEAD + "    on_error: explode\n", 7, "agents.b.on_error"),
    (HEAD + "    fallback: z\n", 7, "agents.b.fallback: there is no agent 'z'"),
    (HEAD + "    input_key: tetx\n", 5, "agents.b: agent 'b': with_input_key names the output 'tetx'"),
    (HEAD + "    fallback: b\n", 5, "agents.b: agent 'b': on_error_fallback names the agent itself"),
    (HEAD + "    handoffs:\n      a: one\n      z: other\n", 9, "agents.b.handoffs.z: there is no agent 'z'"),
    (HEAD + "    handoffs: {a: one}\n    default: z\n", 8, "agents.b.default: there is no agent 'z'"),
    (
        HEAD + "edges:\n- {from: a, to: b}\n- {from: b, to: END}\n- {from: a, to: b}\n",
        8,
        "edges.0: edge 'a' -> 'b' was added twice",
    ),
    (
        HEAD + "edges:\n- {from: START, to: a}\n- {from: a, to: b}\n- {from: b, to: a}\n",
        10,
        "edges.2: the edge from 'b' back to 'a' has no condition",
    ),
    (HEAD + "edges:\n- {from: a, to: b, default: true}\n", 3, "agents.a: agent 'a' has a default edge"),
    (HEAD + "edges:\n- {from: a, to: b}\n- {from: END, to: a}\n", 9, "edges.1: edge 'END' -> 'a'"),
    (
        HEAD + "edges:\n- from: a\n  to: b\n  when:\n    any:\n    - {always: true}\n"
        "    - {field: x, test: matches, value: (}\n",
        13,
        "edges.0.when.any.1: the pattern '(' of 'x' is no regular expression",
    ),
    (
        HEAD + "edges:\n- from: a\n  to: b\n  when:\n    type: Verdict\n",
        8,
        "edges.0: edge 'a' -> 'b': agent 'a' gives out text, never a Verdict",
    ),
    (HEAD + "    agent: writer\n", 7, "'agent' stands here twice"),
    (HEAD + "    output: [int]\n", 7, "'int' is not registered"),
    (HEAD + "    retry: {attempts: 0}\n", 7, "agents.b.retry.attempts"),
    (HEAD + "    approval:\n      when: {field: x, test: looks_like}\n", 8, "approval.when.test"),
    (HEAD + "    default: a\n", 7, "a default is for an agent with 'handoffs'"),
    (HEAD + "edges:\n- {from: a, to: c}\n", 8, "edges.0.to: there is no agent 'c'"),
    (HEAD + "edges:\n- {from: a}\n", 8, "'to' is missing"),
    (
        HEAD + "edges:\n- from: a\n  to: b\n  when: {field: x, test: equals}\n",
        10,
        "the test 'equals' needs a 'value'",
    ),
    (HEAD + "edges:\n- {from: a, to: b, when: {predicate: f}}\n", 8, "there is no 'predicate' here"),
    (
        HEAD + "edges:\n- {from: a, to: b, when: {always: true}, default: true}\n",
        8,
        "'when' or 'default', not both",
    ),
    (HEAD + "name: !!python/name:os.system x\n", 7, "the tag"),
    (HEAD + "name: &n x\nbudget: {name: *n}\n", 7, "anchors and aliases are not taken"),
    (HEAD + "budget: {name: x}\n", 7, "give it a limit"),
    (HEAD + "conversation: {kind: chat}\n", 7, "conversation.kind"),
    (HEAD + "store: {kind: json}\n", 7, "needs 'root'"),
    (HEAD + "store: {kind: json, root: x, retention: some}\n", 7, "there is no retention 'some'"),
]


@pytest.mark.parametrize(("text", "line", "words"), WRONG_YAML)
def test_wrong_definitions_in_yaml(text: str, line: int, words: str, tmp_path: Path) -> None:
    file = tmp_path / "team.yaml"
    file.write_text(text)
    with pytest.raises(DefinitionError) as caught:
        AgentWorkflow.from_file(file, REGISTRY)
    assert words in str(caught.value)
    assert (caught.value.file, caught.value.line) == (str(file), line), caught.value
    assert str(caught.value).startswith(f"{file}:{line}: ")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('{\n "format": 1,\n "agents": {"a": {"agent": 3}}\n}', 3, "agents.a.agent: a number, not a string"),
        ('{\n "format": 1\n "agents": {}}', 3, "',' is missing"),
        ('{"format": 1,\n\n"format": 1}', 3, "'format' stands here twice"),
        ('{"format": nope}', 1, "this is no JSON"),
        ('{"format": "\\x"}', 1, "this is no JSON"),
        ("[" * 200, 1, "nested more than"),
        ("{} {}", 1, "something follows"),
        ('{"a"}', 1, "':' is missing behind 'a'"),
        ("{1: 2}", 1, "in double quotes"),
    ],
)
def test_wrong_definitions_in_json(text: str, line: int, words: str, tmp_path: Path) -> None:
    file = tmp_path / "team.json"
    file.write_text(text)
    with pytest.raises(DefinitionError) as caught:
        AgentWorkflow.from_file(file, REGISTRY)
    assert words in str(caught.value)
    assert caught.value.line == line


def test_json_is_read_as_the_standard_library_reads_it(tmp_path: Path) -> None:
    from holdfast.agents.workflow.definition_text import read_text

    data: Any = {"a": [1, -2.5e3, True, False, None, "x\n\u00e9\U0001f600", {}, []], "b": {"c": {"d": ""}}}
    for name, text in (
        ("a.json", json.dumps(data)),
        ("b.json", json.dumps(data, indent=3, ensure_ascii=False)),
    ):
        (tmp_path / name).write_text(text, "utf-8")
        assert read_text(tmp_path / name).value == data
    (tmp_path / "c.yaml").write_text("a: no\nb: 0x1F\nc: 1.50\nd: ~\ne: 2026-01-01\nf: on\n")
    assert read_text(tmp_path / "c.yaml").value == {
        "a": "no",
        "b": "0x1F",
        "c": 1.5,
        "d": None,
        "e": "2026-01-01",
        "f": "on",
    }


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"none\.json: cannot be read"):
        AgentWorkflow.from_file(tmp_path / "none.json", REGISTRY)
