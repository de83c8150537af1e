"""A server over stdio that keeps one text per path in a file. The first word of a path decides what `write` really does and
whether a later `read` works."""
import json
import sys

STORE = sys.argv[1]


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def load():
    try:
        with open(STORE, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def write(path, text):
    texts = load()
    if not path.startswith("silent"):
        texts[path] = text.strip() if path.startswith("tidy") else text
    with open(STORE, "w", encoding="utf-8") as file:
        json.dump(texts, file)
    return "done", False


def append(path, text):
    return write(path, load().get(path, "") + text)


def read(path):
    texts = load()
    if path not in texts:
        return "no such text", True
    if path.startswith("broken"):
        return "the index is damaged", True
    return texts[path], False


def schema(*names):
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}}


TOOLS = [
    {"name": "read", "inputSchema": schema("path"), "annotations": {"readOnlyHint": True}},
    {"name": "write", "inputSchema": schema("path", "text")},
    {"name": "append", "inputSchema": schema("path", "text")},
]

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
        call = {"read": read, "write": write, "append": append}[message["params"]["name"]]
        text, failed = call(**message["params"]["arguments"])
        send({"id": id, "result": {"content": [{"type": "text", "text": text}], "isError": failed}})
    elif id is not None:
        send({"id": id, "error": {"code": -32601, "message": "no such method"}})
