"""Tests the Python SDK 1.x in front of a gateway whose upstream speaks any era."""

from __future__ import annotations

from typing import Any

import mcp.types as types
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from pydantic import AnyUrl

import upstreams

pytestmark = pytest.mark.anyio


class Agent:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.logged: list[Any] = []
        self.session: ClientSession

    async def on_elicitation(self, _: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append("elicitation")
        assert isinstance(params, types.ElicitRequestFormParams)
        return types.ElicitResult(action="accept", content=upstreams.form(params.requestedSchema))

    async def on_sampling(self, _: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        self.asked.append("sampling")
        content = params.messages[-1].content
        assert isinstance(content, types.TextContent)
        answer = types.TextContent(type="text", text=f"the model heard: {content.text}")
        return types.CreateMessageResult(role="assistant", content=answer, model="test-model")

    async def on_roots(self, _: Any) -> types.ListRootsResult:
        self.asked.append("roots")
        return types.ListRootsResult(roots=[types.Root(uri=AnyUrl("file:///home/ada"))])

    async def on_log(self, params: types.LoggingMessageNotificationParams) -> None:
        self.logged.append(params.data)

    async def call(self, name: str, args: dict[str, Any], progress: list[float] | None = None) -> list[str]:
        async def on_progress(step: float, total: float | None, message: str | None) -> None:
            assert progress is not None
            progress.append(step)

        result = await self.session.call_tool(name, args, progress_callback=on_progress if progress is not None else None)
        assert not result.isError, result
        return [block.text for block in result.content if isinstance(block, types.TextContent)]

    async def tools(self) -> list[str]:
        return [tool.name for tool in (await self.session.list_tools()).tools]

    async def read(self, uri: str) -> str:
        (content,) = (await self.session.read_resource(AnyUrl(uri))).contents
        assert isinstance(content, types.TextResourceContents)
        return content.text

    async def prompt(self, name: str, args: dict[str, str] | None) -> list[str]:
        messages = (await self.session.get_prompt(name, args)).messages
        return [message.content.text for message in messages if isinstance(message.content, types.TextContent)]

    async def complete(self, prompt: str, argument: str, value: str) -> list[str]:
        ref = types.PromptReference(type="ref/prompt", name=prompt)
        return (await self.session.complete(ref, {"name": argument, "value": value})).completion.values


@pytest.mark.parametrize("path", upstreams.PATHS)
async def test_handshake_client_uses_the_fixture(path: str) -> None:
    agent = Agent()
    with upstreams.reach(path) as url:
        async with (
            streamable_http_client(url) as (read, write, _),
            ClientSession(
                read,
                write,
                elicitation_callback=agent.on_elicitation,
                sampling_callback=agent.on_sampling,
                list_roots_callback=agent.on_roots,
                logging_callback=agent.on_log,
            ) as session,
        ):
            agent.session = session
            await session.initialize()
            await session.set_logging_level("info")
            await upstreams.run_steps(agent)
