"""Serves tools, resources and a prompt with the official Python SDK, on stdio or, given a port, over HTTP."""

import sys

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("python")
READ_ONLY = ToolAnnotations(readOnlyHint=True)


@server.tool(annotations=READ_ONLY)
def add(a: int, b: int = 2) -> int:
    return a + b


@server.tool(annotations=READ_ONLY)
def shout(text: str) -> dict[str, str]:
    return {"text": text.upper()}


@server.resource("memo://one")
def one() -> str:
    return "one"


@server.resource("memo://{name}")
def memo(name: str) -> str:
    return name


@server.prompt()
def greet(name: str) -> str:
    return f"Hello {name}"


if len(sys.argv) > 1:
    server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
else:
    server.run()
