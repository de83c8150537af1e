"""Serves tools, resources and a prompt with FastMCP, on stdio or, given a port, over HTTP."""

import sys

from fastmcp import FastMCP

server = FastMCP("fastmcp")


@server.tool(annotations={"readOnlyHint": True})
def add(a: int, b: int = 2) -> int:
    return a + b


@server.tool(annotations={"readOnlyHint": True})
def shout(text: str) -> dict[str, str]:
    return {"text": text.upper()}


@server.resource("memo://one")
def one() -> str:
    return "one"


@server.resource("memo://{name}")
def memo(name: str) -> str:
    return name


@server.prompt
def greet(name: str) -> str:
    return f"Hello {name}"


if len(sys.argv) > 1:
    server.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
else:
    server.run(show_banner=False)
