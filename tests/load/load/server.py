"""A handshake-era server over stdio with a read and a write tool. Each returns the length of its text, or as much text as
`answer` says. Arguments add tools: `many N` on one page, `wide N` with a kilobyte of description each, `endless` pages with
new cursors, or `circle` for pages whose cursors repeat."""
import json
import sys

KIND = sys.argv[1] if len(sys.argv) > 1 else ""
COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else 0


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def tool(name, **more):
    return {"name": name, "inputSchema": {"type": "object"}, **more}


OWN = [tool("read", annotations={"readOnlyHint": True}), tool("write")]


def page(cursor):
    if KIND == "many":
        return {"tools": OWN + [tool(f"t{n}") for n in range(COUNT)]}
    if KIND == "wide":
        return {"tools": OWN + [tool(f"t{n}", description="x" * 1024) for n in range(COUNT)]}
    if KIND == "endless":
        n = int(cursor or 0)
        return {"tools": (OWN if n == 0 else []) + [tool(f"t{n}")], "nextCursor": str(n + 1)}
    if KIND == "circle":
        if cursor is None:
            return {"tools": OWN, "nextCursor": "a"}
        return {"tools": [tool("t" + cursor)], "nextCursor": {"a": "b", "b": "c", "c": "a"}[cursor]}
    return {"tools": OWN}


for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if method == "initialize":
        info = {"name": "fixture", "version": "1"}
        send({"id": id, "result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}})
    elif method == "ping":
        send({"id": id, "result": {}})
    elif method == "tools/list":
        send({"id": id, "result": page(message.get("params", {}).get("cursor"))})
    elif method == "tools/call":
        arguments = message["params"].get("arguments", {})
        text = "x" * arguments["answer"] if "answer" in arguments else str(len(arguments.get("text", "")))
        send({"id": id, "result": {"content": [{"type": "text", "text": text}]}})
    elif id is not None:
        send({"id": id, "error": {"code": -32601, "message": "no such method"}})
