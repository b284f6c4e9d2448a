"""Call a code reward on programs ([path, name, row, programs] as JSON); print scores and harm."""

import asyncio
import importlib.util
import inspect
import json
import os
import socket
import sys
import time
from pathlib import Path


def scores_of(function, row, texts):
    """Scores of texts by a reward of a batch or of one sample, async or not."""
    parameters = inspect.signature(function).parameters
    takes_any, batch = any(p.kind is p.VAR_KEYWORD for p in parameters.values()), "completions" in parameters
    calls = [row | {"completion": text} for text in texts]
    if batch:
        chats = [[{"role": "assistant", "content": text}] for text in texts]
        calls = [{name: [value] * len(texts) for name, value in row.items() if name != "prompt"}]
        calls[0] |= {"prompts": [row["prompt"]] * len(texts)}
        calls[0] |= {"completion_ids": [[1]] * len(texts)} if "completion_ids" in parameters else {}
        calls[0] |= {"completions": chats if isinstance(row["prompt"], list) else texts}
    results = [function(**{k: v for k, v in call.items() if takes_any or k in parameters}) for call in calls]
    results = [asyncio.run(x) if inspect.iscoroutine(x) else x for x in results]
    return [*results[0]] if batch else results


def processes(name):
    """Ids of the processes with this name."""
    comms = {path.parent.name: path for path in Path("/proc").glob("[0-9]*/comm")}
    return [pid for pid, path in comms.items() if path.exists() and path.read_text().strip() == name]


sys.dont_write_bytecode = True
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # a reward's own prints go to stderr
path, name, row, programs = json.loads(sys.argv[1])
sys.path.insert(0, str(Path(path).parent))
spec = importlib.util.spec_from_file_location("tried", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
marks, harm = [Path(f"keep{i}").resolve() for i in range(len(programs))], []
for mark in marks:
    mark.write_text("kept", encoding="utf-8")
    mark.chmod(0o666)
with socket.create_server(("127.0.0.1", 0)) as server:
    port, process_name = str(server.getsockname()[1]), f"attack{os.getpid()}"
    codes = [c.replace("@MARK@", str(m)).replace("@PORT@", port) for c, m in zip(programs, marks, strict=True)]
    codes = [f"```python\n{code.replace('@NAME@', process_name)}\n```" if code else "" for code in codes]
    scores = scores_of(getattr(module, name), row, codes)
    server.setblocking(False)
    time.sleep(0.1)
    try:
        server.accept()[0].close()
        harm.append("a server was reached")
    except BlockingIOError:
        pass
harm += [f"process {pid} runs on" for pid in processes(process_name)]
harm += ["a file outside was changed" for m in marks if not m.exists() or m.read_text() != "kept"]
harm += ["a file was left outside" for m in marks if Path(f"{m}.left").exists()]
walls = getattr(getattr(module, "run_many", None), "__globals__", {}).get("DEFAULT")
result = {"scores": [float(x or 0) for x in scores], "harm": harm, "isolated": walls and walls.isolated()}
print(json.dumps(result), file=out, flush=True)
