"""A handshake-era server over stdio that keeps files in the folded folder. It records every call, with its own name, in the
ledger there. Like servers written in Go, it ignores the case of argument names, and the last duplicate counts."""
import json
import os
import sys

FOLDER, NAME = sys.argv[1], sys.argv[2]

TEXT = {"type": "string"}
SCHEMA = {"type": "object", "properties": {"path": TEXT, "text": TEXT, "dryRun": {"type": "boolean"}}}
TOOLS = [
    {"name": "read", "inputSchema": SCHEMA, "annotations": {"readOnlyHint": True}},
    {"name": "write", "inputSchema": SCHEMA},
    {"name": "die", "inputSchema": SCHEMA},
]


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def note(text):
    with open(os.path.join(FOLDER, "ledger"), "a", encoding="utf-8") as file:
        file.write(NAME + " " + text + "\n")


def call(tool, arguments):
    """Returns the text of the answer and `True` if it is an error."""
    path = os.path.join(FOLDER, arguments.get("path", "none"))
    if tool == "die":
        note("die")
        os._exit(1)
    if tool == "read":
        if arguments.get("path") == "broken":
            return "EIO: the disk is broken", True
        try:
            with open(path, encoding="utf-8") as file:
                return file.read(), False
        except FileNotFoundError:
            return "ENOENT: no such file", True
    if arguments.get("dryrun"):
        return "it would be written", False
    note("write " + arguments.get("text", ""))
    with open(path, "w", encoding="utf-8") as file:
        file.write(arguments.get("text", ""))
    return "done", False


for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if method == "initialize":
        info = {"name": "fixture", "version": "1"}
        send({"id": id, "result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}})
    elif method == "ping":
        send({"id": id, "result": {}})
    elif method == "tools/list":
        send({"id": id, "result": {"tools": TOOLS}})
    elif method == "tools/call":
        folded = {}
        for name, value in message["params"].get("arguments", {}).items():
            folded[name.lower()] = value
        text, failed = call(message["params"]["name"], folded)
        send({"id": id, "result": {"content": [{"type": "text", "text": text}], "isError": failed}})
    elif id is not None:
        send({"id": id, "error": {"code": -32601, "message": "no such method"}})
