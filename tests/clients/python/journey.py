"""The steps that both Python SDKs must be able to do, from the first list to an approved, a rejected and a withdrawn change.

`Agent` wraps either SDK; `wire` reads fields by their wire names.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import anyio
import jsonschema

from gateway import Gateway, eventually

FINAL = {"applied", "failed", "rejected", "expired", "withdrawn"}
WRITES = {
    "create_project",
    "create_issue",
    "update_issue",
    "update_status",
    "assign_issue",
    "add_comment",
    "delete_issue",
}
READS = {"list_projects", "list_issues", "get_issue", "search_issues"}
OWN = {"get_change", "list_changes", "propose_plan", "wait_for_change", "withdraw_change"}


def wire(model: Any) -> dict[str, Any]:
    """Returns a model of the SDK in its wire format."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def text(result: Any) -> str:
    return "\n".join(block.get("text", "") for block in wire(result)["content"])


def structured(result: Any) -> dict[str, Any]:
    assert not wire(result).get("isError"), text(result)
    return wire(result)["structuredContent"]


@dataclass
class Agent:
    """A connected client of either SDK."""

    label: str
    name: str
    call: Callable[..., Awaitable[Any]]
    list_tools: Callable[[], Awaitable[Any]]
    list_resources: Callable[[], Awaitable[Any]]
    list_templates: Callable[[], Awaitable[Any]]
    read_resource: Callable[[str], Awaitable[Any]]
    watch: Callable[[str, list[str]], AbstractAsyncContextManager[None]]
    error: type[Exception]
    # Answers to abandoned calls. An SDK that sends cancellations must get none.
    late: list[Exception]
    sends_cancellation: bool

    async def project(self) -> dict[str, Any]:
        return structured(await self.call("list_projects", {}))["projects"][0]

    async def titles(self, project_id: str) -> set[str]:
        issues = structured(await self.call("list_issues", {"projectId": project_id}))["issues"]
        return {issue["title"] for issue in issues}

    async def propose(self, project_id: str, title: str) -> str:
        result = await self.call("create_issue", {"projectId": project_id, "title": title, "type": "Story"})
        change = structured(result)
        assert change["status"] == "pending"
        assert any(field.get("after") == title for field in change["diff"]["fields"])
        assert "pending approval" in text(result)
        return change["changeId"]

    async def wait_until_final(self, change_id: str) -> tuple[str, str]:
        """Returns the final state and its text."""
        for _ in range(20):
            result = await self.call("wait_for_change", {"changeId": change_id})
            if structured(result)["status"] in FINAL:
                return structured(result)["status"], text(result)
        raise AssertionError(f"change {change_id} does not end")


def code_of(error: Exception) -> int:
    """Returns the JSON-RPC code of an error of either SDK."""
    return error.error.code  # type: ignore[attr-defined]


async def lists(agent: Agent) -> None:
    tools = wire(await agent.list_tools())["tools"]
    assert WRITES | READS | OWN <= {tool["name"] for tool in tools}
    for tool in tools:
        jsonschema.Draft202012Validator.check_schema(tool["inputSchema"])
        jsonschema.Draft202012Validator.check_schema(tool["outputSchema"])
    resources = wire(await agent.list_resources())["resources"]
    read = wire(await agent.read_resource(resources[0]["uri"]))["contents"]
    assert read[0]["uri"] == resources[0]["uri"] and read[0]["text"]
    templates = wire(await agent.list_templates())["resourceTemplates"]
    assert any(template["uriTemplate"].startswith("change://") for template in templates)


async def approve(agent: Agent, gateway: Gateway) -> None:
    project = await agent.project()
    title = f"Approved through {agent.label}"
    change_id = await agent.propose(project["id"], title)
    assert title not in await agent.titles(project["id"]), "nothing is created yet"
    assert gateway.change(change_id)["proposer"]["clientName"] == agent.name
    updates: list[str] = []
    async with agent.watch(f"change://{change_id}", updates):
        await anyio.to_thread.run_sync(gateway.decide, change_id, "approve", "go ahead")
        state, final_text = await agent.wait_until_final(change_id)
        assert state == "applied", final_text
        await eventually("an update of the change's resource", lambda: f"change://{change_id}" in updates)
    assert title in await agent.titles(project["id"])


async def reject(agent: Agent, gateway: Gateway) -> None:
    project = await agent.project()
    title = f"Rejected through {agent.label}"
    change_id = await agent.propose(project["id"], title)
    await anyio.to_thread.run_sync(gateway.decide, change_id, "reject", "not now: budget")
    state, final_text = await agent.wait_until_final(change_id)
    assert state == "rejected" and "not now: budget" in final_text and "alice" in final_text
    assert title not in await agent.titles(project["id"])


async def errors(agent: Agent) -> None:
    try:
        bad = await agent.call("create_issue", {"title": ""})
    except agent.error as error:
        assert code_of(error) == -32602
    else:
        assert wire(bad)["isError"] is True
        assert json.loads(text(bad))["code"] == "VALIDATION_FAILED"
    for failing in (agent.call("no_such_tool", {}), agent.read_resource("nowhere://at/all")):
        try:
            await failing
        except agent.error as error:
            assert code_of(error) in (-32602, -32002)
        else:
            raise AssertionError("it must fail")


async def cancel(agent: Agent) -> None:
    project = await agent.project()
    change_id = await agent.propose(project["id"], f"Left waiting through {agent.label}")
    seen: list[float] = []

    async def progress(value: float, total: float | None, message: str | None) -> None:
        seen.append(value)

    async with anyio.create_task_group() as group:

        async def wait() -> None:
            await agent.call("wait_for_change", {"changeId": change_id}, progress_callback=progress)

        group.start_soon(wait)
        await eventually("progress of wait_for_change", lambda: len(seen) > 0)
        group.cancel_scope.cancel()
    assert seen == sorted(seen)
    withdrawn = structured(await agent.call("withdraw_change", {"changeId": change_id}))
    assert withdrawn["status"] == "withdrawn"
    if not agent.sends_cancellation:
        await eventually("the answer to the abandoned call", lambda: len(agent.late) > 0)


async def run_all(agent: Agent, gateway: Gateway) -> None:
    """Runs all steps over one connection."""
    await lists(agent)
    await approve(agent, gateway)
    await reject(agent, gateway)
    await errors(agent)
    await cancel(agent)
