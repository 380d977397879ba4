"""The recorded triage, run again without a model and without the log: ``pytest examples/recorded_run``."""

from openai import AsyncOpenAI

from examples.recorded_run.triage import CASSETTE, build_workflow
from holdfast.agents import Cassette


def test_triage() -> None:
    nowhere = AsyncOpenAI(api_key="none", base_url="http://127.0.0.1:9/v1")
    with Cassette.load(CASSETTE).replay():
        result = build_workflow(nowhere).run_sync("checkout fails")
    assert result.outputs[0].startswith("P0")
