"""A JSON server on this machine, for as long as a test needs it: `with serving(answer) as url`."""

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace


@contextlib.contextmanager
def serving(answer: Callable[[SimpleNamespace], tuple]) -> Iterator[str]:
    """The URL of a server whose status and body are `answer(asked)`.

    Args:
        answer: gets the path, the headers and the body of a request, which is None for GET; returns a status, and what
            is sent as JSON, or as it is if it is bytes.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # a client keeps its connection

        def reply(self, body) -> None:
            status, said = answer(SimpleNamespace(path=self.path, headers=self.headers, body=body))
            text = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self):
            self.reply(None)

        def do_POST(self):
            self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def log_message(self, *_):
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
