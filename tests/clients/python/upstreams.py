"""Connects Python clients to the fixture servers of `tests/fixtures`, directly or through a gateway, and runs the same run_steps."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from gateway import REPOSITORY, Gateway

NODE = os.environ.get("COUNTERSIGN_NODE") or shutil.which("node") or "node"
FIXTURES = REPOSITORY / "tests" / "fixtures"
KINDS = {"both": ["--era", "both"], "legacy": ["--sdk", "v1"], "modern": ["--era", "modern"]}
# `direct` tests the steps themselves.
PATHS = ["direct", *KINDS]


@contextmanager
def fixture(kind: str) -> Iterator[str]:
    """Starts a fixture over HTTP and yields its base URL."""
    command = [NODE, str(FIXTURES / "server.mjs"), *KINDS[kind]]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@contextmanager
def reach(path: str) -> Iterator[str]:
    """Yields the URL of the fixture, or of a gateway in front of it."""
    with fixture("both" if path == "direct" else path) as url:
        if path == "direct":
            yield f"{url}/mcp"
            return
        folder = pathlib.Path(tempfile.mkdtemp(prefix="countersign-test-"))
        try:
            config = folder / "countersign.yaml"
            config.write_text(
                json.dumps(
                    {
                        "policy": {"default": "allow"},
                        "modules": {"tracker": {"enabled": False}},
                        "mcpServers": {"fixture": {"url": f"{url}/mcp", "prefix": "", "required": True}},
                    },
                    indent=4,
                )
            )
            gateway = Gateway(config=str(config))
            try:
                gateway.wait_ready()
                yield gateway.mcp
            finally:
                gateway.stop()
        finally:
            shutil.rmtree(folder)


class Agent(Protocol):
    """The interface of an SDK for the run_steps. `call` returns the texts of the result; `asked` records the server's questions."""

    call: Callable[..., Awaitable[list[str]]]
    tools: Callable[[], Awaitable[list[str]]]
    read: Callable[[str], Awaitable[str]]
    prompt: Callable[[str, dict[str, str] | None], Awaitable[list[str]]]
    complete: Callable[[str, str, str], Awaitable[list[str]]]
    asked: list[str]
    logged: list[Any]


async def run_steps(agent: Agent) -> None:
    """Uses everything of the fixture. The client answers questions as Ada."""
    tools = await agent.tools()
    for name in ("test_simple_text", "test_elicitation", "test_input_required_result_multi_round", "echo"):
        assert name in tools

    assert await agent.call("test_simple_text", {}) == ["This is a simple text response for testing."]
    assert json.loads((await agent.call("echo", {"list": [1, 2.5, "ü", None]}))[0]) == {"list": [1, 2.5, "ü", None]}
    assert await agent.call("test_header_parameter", {"region": "zürich ", "priority": 42, "dry": False}) != []

    assert await agent.call("test_elicitation", {"message": "Who?"}) == ['User response: action=accept, content={"response":"Ada"}']
    assert await agent.call("test_sampling", {"prompt": "Hello"}) == ["LLM response: the model heard: Hello"]
    assert await agent.call("test_input_required_result_list_roots", {}) == ["Roots: file:///home/ada"]
    assert await agent.call("test_input_required_result_request_state", {}) != []
    assert await agent.call("test_input_required_result_multi_round", {}) == ["Ada likes Ada"]
    assert await agent.call("test_input_required_result_multiple_inputs", {}) == [
        "the model heard: Generate a greeting Ada at file:///home/ada"
    ]
    assert sorted(set(agent.asked)) == ["elicitation", "roots", "sampling"]
    assert agent.asked.count("elicitation") == 5

    progress: list[float] = []
    assert await agent.call("test_tool_with_progress", {}, progress=progress) == ["Tool with progress executed successfully"]
    assert progress == [0, 50, 100]

    await agent.call("test_tool_with_logging", {})
    assert agent.logged == ["Tool execution started", "Tool processing data", "Tool execution completed"]

    assert await agent.read("test://static-text") == "This is the content of the static text resource."
    assert json.loads(await agent.read("test://template/7/data"))["id"] == "7"
    assert await agent.read("test://guarded") == "Opened with Ada"
    assert await agent.prompt("test_prompt_with_arguments", {"arg1": "a", "arg2": "b"}) == ["Prompt with arguments: arg1='a', arg2='b'"]
    assert await agent.prompt("test_input_required_result_prompt", None) == ["In this context: Ada"]
    assert await agent.complete("test_prompt_with_arguments", "arg1", "pa") == ["paris", "park", "party"]


def form(schema: dict[str, Any]) -> dict[str, Any]:
    """Fills in a form as Ada."""
    return {name: {"string": "Ada", "boolean": True}[part["type"]] for name, part in schema["properties"].items()}
