"""Programs sent to a SandboxFusion service: a local server speaks its protocol and runs them with `python -I`."""

import http.server
import json
import subprocess
import sys
import threading

import pytest
from conftest import load_script

sandbox = load_script("sandbox")


class Service(http.server.BaseHTTPRequestHandler):
    """POST /run_code as SandboxFusion answers it; `mode` makes it fail."""

    mode, seen = "run", []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).seen.append((self.path, body))
        answer = {"status": "Success", "run_result": {"status": "Finished"}}
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", body["code"]],
                **{"input": body["stdin"], "capture_output": True, "text": True, "timeout": body["run_timeout"]},
            )
            answer["run_result"].update(return_code=done.returncode, stdout=done.stdout, stderr=done.stderr)
            if done.returncode:
                answer["status"] = "Failed"
        except subprocess.TimeoutExpired:
            answer = {"status": "Failed", "run_result": {"status": "TimeLimitExceeded", "return_code": None}}
        if self.mode == "broken":
            answer = {"status": "SandboxError", "message": "no worker"}
        data = b"<html>" if self.mode == "garbage" else json.dumps(answer).encode()
        self.send_response(500 if self.mode == "500" else 200)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def url():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Service.mode, Service.seen[:] = "run", []
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


ADD = "def add(a, b):\n    return a + b\n"


@pytest.mark.parametrize(
    ("code", "tests", "passed", "total"),
    [
        (ADD, ["assert add(1, 2) == 3", "assert add(-1, b=1) == 0"], 2, 2),
        (ADD, [{"args": [1, 2], "expected": 3}, {"args": ["a", "b"], "expected": "ab"}], 2, 2),
        (ADD, [([[1], [2]], [1, 2]), ([1, 1], 3)], 1, 2),
        ("class Solution:\n    def add(self, a, b):\n        return a + b\n", [([2, 2], 4)], 1, 1),
        ("print(int(input()) + 1)", [{"input": "1\n", "output": "2"}, {"input": "2\n", "output": "4"}], 1, 2),
        ("def add(a, b): return type('E', (), {'__eq__': lambda s, o: True})()", [([1, 2], 3)], 0, 1),
        ("print({'value': 3}); raise SystemExit", [([1, 2], 3)], 0, 1),
        ("def add(a, b): 1 / 0", [([1, 2], 3)], 0, 1),
    ],
)
def test_verdicts(url, code, tests, passed, total):
    verdict = sandbox.run_code(code, tests, entry_point="add", endpoint=url)
    assert (verdict.passed, verdict.total, verdict.all_passed) == (passed, total, passed == total)
    assert all(path == "/run_code" and body["language"] == "python" for path, body in Service.seen)
    assert "expected" not in json.dumps(Service.seen) and len(Service.seen) == total


def test_timeout_ends_the_run(url):
    verdict = sandbox.run_code("while True: pass", [{"input": "", "output": ""}] * 3, timeout_s=0.5, endpoint=url)
    assert verdict.status == "timeout" and verdict.total == 3 and len(Service.seen) == 1


@pytest.mark.parametrize("mode", ["broken", "garbage", "500"])
def test_a_service_that_fails_is_no_verdict(url, mode):
    Service.mode = mode
    with pytest.raises(sandbox.SandboxError, match=r"127\.0\.0\.1"):
        sandbox.run_code(ADD, [([1, 2], 3)], entry_point="add", endpoint=url)


def test_no_service():
    with pytest.raises(sandbox.SandboxError, match="expected a SandboxFusion service"):
        sandbox.run_code(ADD, [([1, 2], 3)], entry_point="add", endpoint="http://127.0.0.1:9")


def test_tests_that_cannot_be_kept_apart_are_refused(url):
    with pytest.raises(sandbox.BadTests, match=r"expected `assert f\(literals\) == literal`"):
        sandbox.run_code(ADD, ["x = add(1, 2)\nassert x == 3"], entry_point="add", endpoint=url)
