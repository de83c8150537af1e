"""Starts the gateway for a test, creates a reviewer's key, decides over REST, and stops the started processes.

With COUNTERSIGN_TEST_NODES=3, three gateways on one PostgreSQL behind nginx replace each one (tests/clients/cluster.mjs).
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
BINARY = str(REPOSITORY / os.environ.get("COUNTERSIGN_BIN", "target/debug/countersign"))
NODES = int(os.environ.get("COUNTERSIGN_TEST_NODES", "1"))


def environment() -> dict[str, str]:
    """Returns the environment of the program, without the developer's own configuration."""
    kept = {k: os.environ[k] for k in ("PATH", "HOME", "TMPDIR") if k in os.environ}
    return kept | {"XDG_CONFIG_HOME": os.path.join(tempfile.gettempdir(), "countersign-no-config")}


class Gateway:
    """A running `countersign serve` with new data, and a reviewer who uses the REST API."""

    def __init__(self, config: str | None = None) -> None:
        self.log = tempfile.TemporaryFile()
        self.data = ""
        self.process: subprocess.Popen[bytes] | None = None
        try:
            if NODES > 1:
                self._start_cluster(config)
            else:
                self._start(config)
            self.port = urllib.parse.urlsplit(self.url).port
            self.mcp = f"{self.url}/mcp"
        except BaseException:
            self.stop()
            raise

    def _start(self, config: str | None) -> None:
        self.data = tempfile.mkdtemp(prefix="countersign-test-")
        self.process = subprocess.Popen(
            [BINARY, "serve", *(["--config", config] if config else []), "--listen", "127.0.0.1:0", "--data", self.data],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.log,
            env=environment(),
        )
        # The system chooses the port.
        self.url = self._read_address()
        self.nodes = [self.url]
        self._wait_healthy()
        self.key = self.create_key("reviewer", "alice")

    def _start_cluster(self, config: str | None) -> None:
        self.process = subprocess.Popen(
            [os.environ["COUNTERSIGN_NODE"], REPOSITORY / "tests/clients/cluster.mjs", str(NODES), *([config] if config else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
        )
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            raise RuntimeError(f"no cluster\n{self.log.read().decode()}")
        cluster = json.loads(line)
        self.url, self.key, self.data, self.nodes = cluster["url"], cluster["key"], cluster["data"], cluster["nodes"]

    def _read_address(self) -> str:
        """Returns the address that this process publishes in its data directory."""
        end = time.monotonic() + 60
        while True:
            try:
                file = json.loads(pathlib.Path(self.data, "gateway.json").read_bytes())
            except (OSError, ValueError):
                file = {}
            if file.get("pid") == self.process.pid:
                return file["url"]
            if self.process.poll() is not None or time.monotonic() > end:
                self.log.seek(0)
                raise RuntimeError(f"the gateway does not publish its address\n{self.log.read().decode()}")
            time.sleep(0.025)

    def _wait_healthy(self) -> None:
        end = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=2):
                    return
            except OSError as error:
                if self.process.poll() is not None or time.monotonic() > end:
                    self.log.seek(0)
                    raise RuntimeError(f"no answer from /health\n{self.log.read().decode()}") from error
                time.sleep(0.025)

    def wait_ready(self) -> None:
        """Waits until every node has the required servers."""
        end = time.monotonic() + 60
        for node in self.nodes:
            while not self._is_ready(node, end):
                time.sleep(0.025)

    def _is_ready(self, node: str, end: float) -> bool:
        try:
            with urllib.request.urlopen(f"{node}/ready", timeout=2):
                return True
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError) and error.code == 404:
                return True
            if time.monotonic() > end:
                self.log.seek(0)
                raise RuntimeError(f"not ready\n{self.log.read().decode()}") from error
            return False

    def create_key(self, role: str, name: str) -> str:
        """Creates an API key with the command line."""
        command = [BINARY, "keys", "create", "--role", role, "--name", name, "--data", self.data]
        return subprocess.run(command, env=environment(), check=True, capture_output=True, text=True).stdout.strip()

    def api(self, method: str, route: str, body: Any = None) -> tuple[int, Any]:
        """Calls the REST API and returns `(status, JSON)`."""
        request = urllib.request.Request(f"{self.url}/api{route}", method=method)
        request.add_header("Authorization", f"Bearer {self.key}")
        data = None
        if body is not None:
            request.add_header("Content-Type", "application/json")
            data = json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, data, timeout=60) as response:
                return response.status, json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")

    def change(self, change_id: str) -> dict[str, Any]:
        status, body = self.api("GET", f"/changes/{change_id}")
        assert status == 200, (status, body)
        return body

    def decide(self, change_id: str, decision: str, comment: str | None = None) -> dict[str, Any]:
        change = self.change(change_id)
        status, body = self.api(
            "POST",
            f"/changes/{change_id}/decision",
            {"decision": decision, "comment": comment, "version": change["version"], "digest": change["digest"]},
        )
        assert status == 200, (status, body)
        return body

    def stop(self) -> None:
        """Stops the process (a cluster by closing its standard input) and removes the data."""
        if self.process:
            if self.process.stdin:
                self.process.communicate(timeout=90)
            elif self.process.poll() is None:
                self.process.terminate()
                try:
                    self.process.wait(5)
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    self.process.wait(5)
        self.log.close()
        shutil.rmtree(self.data, ignore_errors=True)


async def eventually(what: str, check: Callable[[], bool], limit: float = 60.0) -> None:
    """Returns when `check` is true; fails after `limit` seconds."""
    import anyio

    with anyio.move_on_after(limit):
        while not check():
            await anyio.sleep(0.02)
        return
    raise AssertionError(f"not within {limit} s: {what}")
