"""A client that a generator makes of the OpenAPI document without a warning: its types fit the replies."""

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.service.processes import PATIENCE, TOKEN, ServerProcess

Part = Callable[[str], ModuleType]
CONFIG = "post_hooks: []\npackage_name_override: generated_client\n"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("generated")
    one = ServerProcess(folder / "runs.db", workflows="refunds greeting ordering nested")
    yield one
    one.end()


@pytest.fixture(scope="module")
def part(live: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Part]:
    """Generate the client, and give its modules by name."""
    folder = tmp_path_factory.mktemp("client")
    (folder / "openapi.json").write_bytes(live.client.get("/openapi.json").content)
    (folder / "config.yaml").write_text(CONFIG)
    program = "from openapi_python_client.cli import app; app()"
    arguments = ["generate", "--path", "openapi.json", "--config", "config.yaml", "--meta", "none"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments, "--fail-on-warning"],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(folder))
    yield lambda name: importlib.import_module(f"generated_client{name}")
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == "generated_client"]:
        del sys.modules[name]


def test_a_generated_client_starts_answers_and_reads(live: ServerProcess, part: Part) -> None:
    models, client_module = part(".models"), part(".client")
    with client_module.AuthenticatedClient(live.url, token=TOKEN, raise_on_unexpected_status=True) as client:
        order = models.RefundsInput(input_=models.RefundsInputRefund("Ada", 5), run_id="generated")
        begun = part(".api.default.start_run_refunds").sync(
            client=client, body=order, prefer="wait=20", idempotency_key="one"
        )
        assert type(begun).__name__ == "RefundsRun"
        assert (begun.run_id, begun.status, begun.outputs) == ("generated", "waiting", [])
        (asked,) = begun.requests
        answers = models.RefundsResponsesResponses()
        answers[asked.request_id] = models.RefundsResponsesResponsesDecision(approved=True)
        reply = part(".api.default.respond").sync(
            "generated", client=client, body=models.RefundsResponses(answers), prefer="wait=20"
        )
        assert (reply.status, reply.outputs) == ("completed", ["Ada gets 5"])
        page = part(".api.default.list_runs").sync(client=client, workflow="Refunds", limit=10)
        assert [run.run_id for run in page.runs] == ["generated"]
        checkpoints = part(".api.default.list_checkpoints").sync("generated", client=client).checkpoints
        assert checkpoints[-1].checkpoint_id == reply.checkpoint_id
        tree = part(".api.default.show_tree").sync("generated", client=client)
        assert len(tree.checkpoints) == len(checkpoints)
        assert part(".api.default.list_requests").sync(client=client).requests == []
        assert part(".api.default.show_store").sync(client=client).runs["completed"] >= 1


def test_a_generated_client_knows_outputs_and_refusals(live: ServerProcess, part: Part) -> None:
    models, client_module = part(".models"), part(".client")
    with client_module.AuthenticatedClient(live.url, token=TOKEN, raise_on_unexpected_status=True) as client:
        greet = part(".api.default.start_run_greet")
        done = greet.sync(client=client, body=models.GreetInput("kelp"), prefer="wait=20")
        assert (type(done).__name__, done.outputs) == ("GreetRun", ["hello kelp"])
        assert "outputs: list[str]" in Path(str(part(".models.greet_run").__file__)).read_text()
        problem = greet.sync(client=client, body=models.GreetInput("kelp", run_id=done.run_id))
        assert (type(problem).__name__, problem.status, problem.title) == ("ProblemForm", 409, "Run exists")
        missing = part(".api.default.show_one_run").sync("nobody", client=client)
        assert (missing.status, missing.type_) == (404, "urn:holdfast:problem:RunNotFound")
    with client_module.Client(live.url, raise_on_unexpected_status=True) as nobody:
        assert part(".api.default.list_runs").sync(client=nobody).status == 401
