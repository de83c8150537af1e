"""A handshake-era server over stdio that is typical of first attempts: tools without annotations, one whose preview fails,
and some that fail or are slow. It records the calls of its tools in the given file."""
import json
import os
import sys
import time

LEDGER = sys.argv[1]
WORDS = LEDGER + ".words"
RELEASE = LEDGER + ".release"
TEXT = {"type": "string"}


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def tool(name, **more):
    schema = {"type": "object", "properties": {"path": TEXT, "content": TEXT, "title": TEXT, "query": TEXT}}
    return {"name": name, "description": "The tool " + name, "inputSchema": schema, **more}


def tools():
    words = "Looks things up"
    if os.path.exists(WORDS):
        with open(WORDS, encoding="utf-8") as file:
            words = file.read()
    reads = {"annotations": {"readOnlyHint": True}}
    listed = [tool("peek", **reads), tool("glance", **reads), {**tool("lookup"), "description": words}]
    names = ["save", "unreadable", "note", "fails", "hangs", "twice", "later"]
    listed += [tool(name) for name in names]
    return listed + [tool("git_commit"), tool("git_status"), tool("git_diff_staged")]


def answer(name, arguments):
    if name == "unreadable":
        return "the disk is gone", True
    if name == "fails":
        return "there is no room left\nnone at all", True
    if name == "hangs":
        while not os.path.exists(RELEASE):
            time.sleep(0.05)
    if name == "git_status":
        return "Repository status:\nOn branch main", False
    if name == "git_diff_staged":
        return "Staged changes:\n", False
    return "done: " + name, False


for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if method == "initialize":
        version = message["params"]["protocolVersion"]
        info = {"name": "fixture", "version": "1"}
        version = version if version < "2026" else "2025-11-25"
        send({"id": id, "result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}})
    elif method == "ping":
        send({"id": id, "result": {}})
    elif method == "tools/list":
        send({"id": id, "result": {"tools": tools()}})
    elif method == "tools/call":
        name = message["params"]["name"]
        with open(LEDGER, "a", encoding="utf-8") as file:
            file.write(name + "\n")
        text, failed = answer(name, message["params"].get("arguments", {}))
        send({"id": id, "result": {"content": [{"type": "text", "text": text}], "isError": failed}})
    elif id is not None:
        send({"id": id, "error": {"code": -32601, "message": "no such method"}})
