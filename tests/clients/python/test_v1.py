"""Tests the Python SDK 1.x (`mcp`) over stdio, Streamable HTTP, HTTP + SSE and WebSocket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp.types as types
import pytest
from mcp import ClientSession, McpError, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.websocket import websocket_client
from pydantic import AnyUrl

import journey
from gateway import BINARY, Gateway, environment

NAME = "python-sdk-v1"
pytestmark = pytest.mark.anyio


@asynccontextmanager
async def streams(transport: str, gateway: Gateway) -> AsyncIterator[tuple[Any, Any]]:
    if transport == "http":
        async with streamable_http_client(gateway.mcp) as (read, write, _):
            yield read, write
    elif transport == "sse":
        async with sse_client(f"{gateway.url}/sse") as stream_pair:
            yield stream_pair
    elif transport == "websocket":
        async with websocket_client(f"ws://127.0.0.1:{gateway.port}/ws") as stream_pair:
            yield stream_pair
    else:
        server = StdioServerParameters(command=BINARY, args=["stdio", "--data", gateway.data], env=environment())
        async with stdio_client(server) as stream_pair:
            yield stream_pair


@asynccontextmanager
async def connect(transport: str, gateway: Gateway) -> AsyncIterator[tuple[ClientSession, journey.Agent]]:
    watching: dict[str, list[str]] = {}

    late: list[Exception] = []

    async def on_message(message: Any) -> None:
        if isinstance(message, RuntimeError) and "unknown request ID" in str(message):
            late.append(message)
        elif isinstance(message, Exception):
            raise message
        if isinstance(message, types.ServerNotification) and isinstance(
            message.root, types.ResourceUpdatedNotification
        ):
            uri = str(message.root.params.uri)
            watching.get(uri, []).append(uri)

    async with (
        streams(transport, gateway) as (read, write),
        ClientSession(
            read, write, message_handler=on_message, client_info=types.Implementation(name=NAME, version="1")
        ) as session,
    ):
        result = await session.initialize()
        assert result.serverInfo.name == "countersign"
        assert result.protocolVersion == "2025-11-25"

        @asynccontextmanager
        async def watch(uri: str, seen: list[str]) -> AsyncIterator[None]:
            watching[uri] = seen
            await session.subscribe_resource(AnyUrl(uri))
            yield
            await session.unsubscribe_resource(AnyUrl(uri))

        yield (
            session,
            journey.Agent(
                label=f"{NAME} over {transport}",
                name=NAME,
                call=session.call_tool,
                list_tools=session.list_tools,
                list_resources=session.list_resources,
                list_templates=session.list_resource_templates,
                read_resource=lambda uri: session.read_resource(AnyUrl(uri)),
                watch=watch,
                error=McpError,
                late=late,
                sends_cancellation=False,
            ),
        )


@pytest.mark.parametrize("transport", ["http", "sse", "websocket", "stdio"])
async def test_journey(transport: str, gateway: Gateway) -> None:
    async with connect(transport, gateway) as (session, agent):
        await session.send_ping()
        await session.set_logging_level("warning")
        await journey.run_all(agent, gateway)


async def test_two_sessions_share_changes(gateway: Gateway) -> None:
    async with connect("http", gateway) as (_, first), connect("stdio", gateway) as (_, second):
        project = await first.project()
        change_id = await first.propose(project["id"], "Seen by both")
        seen = journey.structured(await second.call("get_change", {"changeId": change_id}))
        assert seen["status"] == "pending"
        await second.call("withdraw_change", {"changeId": change_id})
        assert (await first.wait_until_final(change_id))[0] == "withdrawn"
