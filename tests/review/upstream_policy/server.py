"""A handshake-era server over stdio. It records the exact arguments of each call in the first file and takes the descriptions
of its tools from the second. The tool `fill` asks the client before it answers."""
import json
import sys

LEDGER, WORDS = sys.argv[1], sys.argv[2]
DONE = {"content": [{"type": "text", "text": "done"}]}


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def tools():
    with open(WORDS, encoding="utf-8") as file:
        words = file.read()
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "additionalProperties": True}
    listed = [
        {"name": "read", "description": words, "inputSchema": schema, "annotations": {"readOnlyHint": True}},
        {"name": "write", "description": "Writes", "inputSchema": schema},
        {"name": "secret", "description": "Not for agents", "inputSchema": schema},
    ]
    if "more" in words:
        listed.append({"name": "more", "description": "New", "inputSchema": schema})
    if "fill" in words:
        listed.append({"name": "fill", "description": "Writes to a path", "inputSchema": {**schema, "required": ["path"]}})
    return listed


for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if method == "initialize":
        version = message["params"]["protocolVersion"]
        info = {"name": "fixture", "version": "1"}
        send({"id": id, "result": {"protocolVersion": version if version < "2026" else "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}})
    elif method == "ping":
        send({"id": id, "result": {}})
    elif method == "tools/list":
        send({"id": id, "result": {"tools": tools()}})
    elif method == "tools/call":
        # Cuts the arguments out of the message, because a parser would change their text.
        start = line.index('"arguments":') + len('"arguments":')
        depth, quoted, end = 0, False, start
        while True:
            c = line[end]
            if quoted:
                if c == "\\":
                    end += 1
                elif c == '"':
                    quoted = False
            elif c == '"':
                quoted = True
            elif c in "{[":
                depth += 1
            elif c in "}]":
                depth -= 1
            end += 1
            if depth == 0 and not quoted and line[start:end].strip():
                break
        with open(LEDGER, "a", encoding="utf-8") as file:
            file.write(message["params"]["name"] + " " + line[start:end].strip() + "\n")
        if message["params"]["name"] == "fill":
            asking_call = id
            form = {"type": "object", "properties": {"sure": {"type": "boolean"}}}
            send({"id": "sure", "method": "elicitation/create", "params": {"message": "Sure?", "requestedSchema": form}})
        else:
            send({"id": id, "result": DONE})
    elif method is None and id == "sure":
        send({"id": asking_call, "result": DONE})
    elif id is not None:
        send({"id": id, "error": {"code": -32601, "message": "no such method"}})
