"""Tests the Python SDK 2.x (`mcp`): 2026-07-28 over HTTP and stdio, and its handshake mode, including HTTP + SSE."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters
from mcp.client.subscriptions import ResourceUpdated
from mcp.shared.exceptions import MCPError

import journey
from gateway import BINARY, Gateway, environment, eventually

NAME = "python-sdk-v2"
MODERN = "2026-07-28"
pytestmark = pytest.mark.anyio


def server_of(transport: str, gateway: Gateway) -> Any:
    if transport == "http":
        return gateway.mcp
    if transport == "sse":
        return sse_client(f"{gateway.url}/sse")
    return StdioServerParameters(command=BINARY, args=["stdio", "--data", gateway.data], env=environment())


@asynccontextmanager
async def connect(transport: str, mode: str, gateway: Gateway) -> AsyncIterator[tuple[Client, journey.Agent]]:
    watching: dict[str, list[str]] = {}

    async def on_message(message: Any) -> None:
        if isinstance(message, Exception):
            raise message
        if isinstance(message, types.ResourceUpdatedNotification):
            uri = str(message.params.uri)
            watching.get(uri, []).append(uri)

    async with Client(
        server_of(transport, gateway),
        mode=mode,
        cache=None,
        message_handler=on_message,
        client_info=types.Implementation(name=NAME, version="2"),
    ) as client:

        @asynccontextmanager
        async def watch(uri: str, seen: list[str]) -> AsyncIterator[None]:
            if client.protocol_version == MODERN:
                async with client.listen(resource_subscriptions=[uri]) as subscription, anyio.create_task_group() as group:
                    assert subscription.honored.resource_subscriptions == [uri]

                    async def follow() -> None:
                        async for event in subscription:
                            if isinstance(event, ResourceUpdated):
                                seen.append(event.uri)

                    group.start_soon(follow)
                    yield
                    group.cancel_scope.cancel()
            else:
                watching[uri] = seen
                await client.subscribe_resource(uri)
                yield
                await client.unsubscribe_resource(uri)

        yield (
            client,
            journey.Agent(
                label=f"{NAME} {mode} over {transport}",
                name=NAME,
                call=client.call_tool,
                list_tools=client.list_tools,
                list_resources=client.list_resources,
                list_templates=client.list_resource_templates,
                read_resource=client.read_resource,
                watch=watch,
                error=MCPError,
                late=[],
                sends_cancellation=True,
            ),
        )


@pytest.mark.parametrize(
    ("transport", "mode"),
    [("http", "auto"), ("stdio", "auto"), ("http", MODERN), ("http", "legacy"), ("stdio", "legacy"), ("sse", "legacy")],
)
async def test_journey(transport: str, mode: str, gateway: Gateway) -> None:
    async with connect(transport, mode, gateway) as (client, agent):
        assert client.protocol_version == ("2025-11-25" if mode == "legacy" else MODERN)
        if mode != MODERN:  # A pinned client sends no discover, so it does not know the server.
            assert client.server_info is not None and client.server_info.name == "countersign"
        await journey.run_all(agent, gateway)


async def test_listener_receives_a_new_resource(gateway: Gateway) -> None:
    async with connect("http", "auto", gateway) as (client, agent):
        async with client.listen(resources_list_changed=True) as subscription:
            result = await agent.call("create_project", {"name": "Announced", "key": "NEWS"})
            change_id = journey.structured(result)["changeId"]
            await anyio.to_thread.run_sync(gateway.decide, change_id, "approve")
            with anyio.fail_after(60):
                async for _ in subscription:
                    break


async def test_all_listeners_receive_one_change(gateway: Gateway) -> None:
    async with connect("http", "auto", gateway) as (_, agent):
        project = await agent.project()
        change_id = await agent.propose(project["id"], "Watched by many")
        uri = f"change://{change_id}"
        seen: list[list[str]] = [[] for _ in range(8)]
        async with anyio.create_task_group() as group:
            ready = 0

            async def follow(updates: list[str]) -> None:
                nonlocal ready
                async with agent.watch(uri, updates):
                    ready += 1
                    await anyio.sleep_forever()

            for updates in seen:
                group.start_soon(follow, updates)
            await eventually("all have subscribed", lambda: ready == len(seen))
            await anyio.to_thread.run_sync(gateway.decide, change_id, "reject", "no")
            await eventually("all receive the update", lambda: all(uri in updates for updates in seen))
            group.cancel_scope.cancel()
