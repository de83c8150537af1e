"""A server whose methods make it behave well or badly on request."""
import json
import os
import signal
import subprocess
import sys
import time

MARKER = sys.argv[1]
FLAGS = sys.argv[2:]
notified = []


def out(text, end="\n"):
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    sys.stdout.buffer.write(data + end.encode())
    sys.stdout.buffer.flush()


def send(**message):
    out(json.dumps({"jsonrpc": "2.0", **message}))


def start_daemon():
    """Starts a daemon in its own session that ignores SIGTERM and has our marker in its arguments."""
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "os.setsid()\n"
        "print('up', flush=True)\n"
        "os.dup2(os.open(os.devnull, os.O_RDWR), 1)\n"
        "while True: time.sleep(1000)\n"
    )
    middle = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1], sys.argv[2]])"
    # The intermediate process ends at once, so the daemon has no parent.
    child = subprocess.Popen(
        [sys.executable, "-c", middle, code, MARKER], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert child.stdout.readline() == b"up\n"
    child.wait()


def start_pipe_holder():
    """Starts a process that keeps our stdin and stdout open after we end."""
    subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(1000)", MARKER])


def start_fleeing_process():
    """Starts a process that moves to a new child every millisecond."""
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "while os.fork() == 0:\n"
        "    os.setsid()\n"
        "    time.sleep(0.001)\n"
        "os._exit(0)\n"
    )
    subprocess.Popen([sys.executable, "-c", code, MARKER], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def handle(message):
    method, params, id = message.get("method"), message.get("params") or {}, message.get("id")
    if id is None:
        notified.append({"method": method, "params": params})
    elif method == "echo":
        send(id=id, result=params)
    elif method == "id":
        send(id=id, result={"id": id})
    elif method == "raw":
        for line in params["lines"]:
            out(line.replace("$ID", str(id)))
    elif method == "bytes":
        out(bytes(params["bytes"]))
        send(id=id, result={})
    elif method == "notified":
        send(id=id, result={"notified": notified})
    elif method == "never":
        send(method="notifications/progress", params={"progressToken": id, "progress": 1})
    elif method == "exit":
        out(params.get("last", ""), end="")
        os._exit(params["status"])
    elif method == "suicide":
        os.kill(os.getpid(), signal.SIGKILL)
    elif method == "huge":
        try:
            out('{"jsonrpc":"2.0","id":%d,"result":{"x":"' % id, end="")
            for _ in range(params["bytes"] // 65536):
                out("x" * 65536, end="")
            out('"}}')
        except BrokenPipeError:
            pass
    elif method == "ask":
        send(id=params.get("as", "q"), method=params["ask"], params={"of": id})
        for line in sys.stdin:
            answer = json.loads(line)
            if "method" in answer:
                handle(answer)
                continue
            send(id=id, result={"answer": answer})
            break
    elif method == "deaf":
        send(method="notifications/progress", params={"progressToken": id, "progress": 1})
        while True:
            time.sleep(1000)
    elif method == "close-stdout":
        os.close(1)
    elif method == "daemon":
        start_daemon()
        send(id=id, result={})
    elif method == "flee":
        start_fleeing_process()
        send(id=id, result={})
    elif method == "hold":
        start_pipe_holder()
        send(id=id, result={})
    elif method == "where":
        send(id=id, result={"env": dict(os.environ), "cwd": os.getcwd(), "group": os.getpgid(0), "pid": os.getpid()})
    elif method == "fds":
        send(id=id, result={"fds": {fd: os.readlink("/proc/self/fd/" + fd) for fd in os.listdir("/proc/self/fd") if os.path.lexists("/proc/self/fd/" + fd)}})
    elif method == "shout":
        for _ in range(params["lines"]):
            sys.stderr.write(params["line"] + "\n")
        sys.stderr.flush()
        send(id=id, result={})
    else:
        send(id=id, error={"code": -32601, "message": "no such method", "data": {"method": method}})


if "ignore-term" in FLAGS:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "daemon" in FLAGS:
    start_daemon()
if "up" in FLAGS:
    send(method="notifications/up")
for line in sys.stdin:
    handle(json.loads(line))
if "tidy" in FLAGS:
    # A SIGTERM that is sent at once would interrupt this.
    time.sleep(0.5)
    open("tidied", "w").close()
if "stay" in FLAGS:
    while True:
        time.sleep(1000)
