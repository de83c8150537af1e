"""A handshake-era server over stdio whose lists are stored as text and change when a tool is called."""
import json
import sys

TOOLS = [
    '{ "z":[1.0,12345678901234567890123], "name":"odd","title":"Odd","icons":[],"_meta":{"a":1e2}, "inputSchema":{"type":"object","x":1E5},"annotations":{"readOnlyHint":true},"outputSchema":{"type":"object"} }',
    *(
        '{"name":"%s","inputSchema":{"type":"object"}}' % name
        for name in ("grow", "rumour", "lists", "touch", "subscribed")
    ),
]
PROMPTS = ['{"v":0.10,"name":"ask","arguments":[{"name":"who","z":1e1}]}']
RESOURCES = ['{"uri":"note:///a","v":-0.0,"name":"a"}', '{"uri":"note:///b","name":"b"}']
TEMPLATES = ['{"name":"n","uriTemplate":"note:///{name}","v":1e-7}']
CAPABILITIES = (
    '{"tools":{"listChanged":true},"prompts":{"listChanged":true},"completions":{},'
    '"resources":{"subscribe":true,"listChanged":true},'
    '"experimental":{"com.example/shared":{"n":12345678901234567890123},"com.example/mine":{}}}'
)
subscribed = []
listed = 0


def out(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def notify(method, **params):
    out(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}))


def text(value):
    return json.dumps({"content": [{"type": "text", "text": json.dumps(value)}]})


def call(name, arguments):
    if name == "grow":
        TOOLS.append('{"name":"more","inputSchema":{"type":"object"}}')
        notify("notifications/tools/list_changed")
    if name == "rumour":
        notify("notifications/tools/list_changed")
    if name == "touch":
        notify("notifications/resources/updated", uri=arguments["uri"])
    return text({"lists": listed, "subscribed": subscribed}.get(name))


def answer(method, params):
    global listed
    if method == "initialize":
        version = json.dumps(params["protocolVersion"])
        return '{"protocolVersion":%s,"capabilities":%s,"serverInfo":{"name":"lists","version":"1"},"instructions":"Lists\\u202e only."}' % (
            version,
            CAPABILITIES,
        )
    if method == "tools/list":
        listed += 1
        return '{"tools":[%s]}' % ",".join(TOOLS)
    if method == "prompts/list":
        return '{"prompts":[%s]}' % ",".join(PROMPTS)
    if method == "resources/list":
        return '{"resources":[%s]}' % ",".join(RESOURCES)
    if method == "resources/templates/list":
        return '{"resourceTemplates":[%s]}' % ",".join(TEMPLATES)
    if method == "prompts/get":
        return '{"messages":[]}'
    if method == "resources/read":
        return json.dumps({"contents": [{"uri": params["uri"], "text": "read"}]})
    if method == "resources/subscribe":
        subscribed.append(params["uri"])
        return "{}"
    if method == "resources/unsubscribe":
        subscribed.remove(params["uri"])
        return "{}"
    if method == "completion/complete":
        values = ["v%d" % n for n in range(150)]
        return json.dumps({"completion": {"values": values, "total": 150}, "ref": params["ref"]})
    if method == "tools/call":
        return call(params["name"], params.get("arguments") or {})
    if method == "ping":
        return "{}"
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    id = json.dumps(message["id"])
    result = answer(message["method"], message.get("params") or {})
    if result is None:
        out('{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"Method not found"}}' % id)
    else:
        out('{"jsonrpc":"2.0","id":%s,"result":%s}' % (id, result))
