"""Call a code reward on programs: JSON of [path, name, column, programs] -> scores, and what isolated them."""

import importlib.util
import json
import socket
import sys
from pathlib import Path

path, name, column, programs = json.loads(sys.argv[1])
spec = importlib.util.spec_from_file_location("tried", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
marks = [Path(f"keep{i}").resolve() for i in range(len(programs))]
for mark in marks:
    mark.write_text("kept", encoding="utf-8")
    mark.chmod(0o666)
with socket.create_server(("127.0.0.1", 0)) as server:
    port = str(server.getsockname()[1])
    codes = [c.replace("@MARK@", str(m)).replace("@PORT@", port) for c, m in zip(programs, marks, strict=True)]
    completions = [[{"role": "assistant", "content": f"```python\n{code}\n```" if code else ""}] for code in codes]
    columns = {"prompts": [""] * len(codes), column: [["assert f(2) == 4"]] * len(codes)}
    scores = getattr(module, name)(completions=completions, **columns)
print(json.dumps({"scores": scores, "isolated": module.run_many.__globals__["DEFAULT"].isolated()}))
