"""Call a code reward on programs, one by one: a JSON line for each, with its score and its harm outside."""

import importlib.util
import json
import os
import socket
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
given = json.loads(sys.argv[1])
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what a reward or a program prints is no answer
spec = importlib.util.spec_from_file_location("prove_in_trial", given["prove"])
sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
reward = module.Reward([given["reward"]])
print(json.dumps({"number": None}), file=out, flush=True)


def named(name):
    """Processes with this name."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            found += [int(path.parent.name)] * (path.read_text().strip() == name)
        except OSError:
            pass
    return found


with socket.create_server(("127.0.0.1", 0)) as server:
    server.setblocking(False)
    for number, code in given["programs"]:
        mark, name = Path(f"keep{number}").resolve(), f"attack{os.getpid()}_{number}"[:15]
        mark.write_text("kept", encoding="utf-8")
        mark.chmod(0o666)
        for word, value in (("@MARK@", mark), ("@PORT@", server.getsockname()[1]), ("@NAME@", name)):
            code = code.replace(word, str(value))
        answer = {"number": number, "score": None, "raised": "", "harm": []}
        text = f"```python\n{code}\n```" if code else ""
        try:
            answer["score"] = reward([given["row"]], [text], [[1]])[0][0]
        except Exception as error:
            answer["raised"] = f"{type(error).__name__}: {str(error)[:160]}"
        time.sleep(0.2 if name in code else 0)
        answer["harm"] += [f"a process runs on ({pid})" for pid in named(name)]
        if not mark.exists() or mark.read_text() != "kept":
            answer["harm"].append("a file outside was changed")
        if Path(f"{mark}.left").exists():
            answer["harm"].append("a file was left outside")
        try:
            server.accept()[0].close()
            answer["harm"].append("a server was reached")
        except BlockingIOError:
            pass
        print(json.dumps(answer), file=out, flush=True)
