"""Tests the Python SDK 2.x in both eras in front of a gateway whose upstream speaks any era."""

from __future__ import annotations

from typing import Any

import mcp_types as types
import pytest
from mcp import Client

import upstreams

pytestmark = pytest.mark.anyio
MODERN = "2026-07-28"


class Agent:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.logged: list[Any] = []
        self.client: Client

    async def on_elicitation(self, _: Any, params: Any) -> types.ElicitResult:
        self.asked.append("elicitation")
        return types.ElicitResult(action="accept", content=upstreams.form(params.requested_schema))

    async def on_sampling(self, _: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        self.asked.append("sampling")
        content = params.messages[-1].content
        assert isinstance(content, types.TextContent)
        answer = types.TextContent(type="text", text=f"the model heard: {content.text}")
        return types.CreateMessageResult(role="assistant", content=answer, model="test-model")

    async def on_roots(self, _: Any) -> types.ListRootsResult:
        self.asked.append("roots")
        return types.ListRootsResult(roots=[types.Root(uri="file:///home/ada")])

    async def on_log(self, params: types.LoggingMessageNotificationParams) -> None:
        self.logged.append(params.data)

    async def call(self, name: str, args: dict[str, Any], progress: list[float] | None = None) -> list[str]:
        async def on_progress(step: float, total: float | None, message: str | None) -> None:
            assert progress is not None
            progress.append(step)

        result = await self.client.call_tool(name, args, progress_callback=on_progress if progress is not None else None)
        assert not result.is_error, result
        return [block.text for block in result.content if isinstance(block, types.TextContent)]

    async def tools(self) -> list[str]:
        return [tool.name for tool in (await self.client.list_tools()).tools]

    async def read(self, uri: str) -> str:
        (content,) = (await self.client.read_resource(uri)).contents
        assert isinstance(content, types.TextResourceContents)
        return content.text

    async def prompt(self, name: str, args: dict[str, str] | None) -> list[str]:
        messages = (await self.client.get_prompt(name, args)).messages
        return [message.content.text for message in messages if isinstance(message.content, types.TextContent)]

    async def complete(self, prompt: str, argument: str, value: str) -> list[str]:
        ref = types.PromptReference(type="ref/prompt", name=prompt)
        return (await self.client.complete(ref, {"name": argument, "value": value})).completion.values


@pytest.mark.parametrize("mode", [MODERN, "legacy"])
@pytest.mark.parametrize("path", upstreams.PATHS)
async def test_client_of_each_era_uses_the_fixture(path: str, mode: str) -> None:
    agent = Agent()
    with upstreams.reach(path) as url:
        async with Client(
            url,
            mode=mode,
            cache=None,
            elicitation_callback=agent.on_elicitation,
            sampling_callback=agent.on_sampling,
            list_roots_callback=agent.on_roots,
            logging_callback=agent.on_log,
            log_level="info",
        ) as client:
            agent.client = client
            if mode != MODERN:
                await client.set_logging_level("info")
            await upstreams.run_steps(agent)
