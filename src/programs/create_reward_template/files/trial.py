"""Call a written code reward on programs: JSON of [path, name, column, programs] -> scores."""

import importlib.util
import json
import resource
import socket
import sys


def peak() -> int:
    """The kernel's own figure of this program; getrusage's begins with that of the process that started it."""
    with open("/proc/self/status", encoding="utf-8") as status:
        sizes = [line.split()[1] for line in status if line.startswith("VmHWM")]
    return 1024 * int(sizes[0] if sizes else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def tried(path: str, name: str, column: str, programs: list[str]) -> dict:
    """The scores of the programs, how much memory they cost here, and what isolated them."""
    spec = importlib.util.spec_from_file_location("tried", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        texts = ["```python\n" + code.replace("@PORT@", port) + "\n```" if code else "" for code in programs]
        completions = [[{"role": "assistant", "content": text}] for text in texts]
        rows = {"prompts": [""] * len(texts), column: [["assert f(2) == 4"]] * len(texts)}
        size = peak()
        scores = getattr(module, name)(completions=completions, **rows)
        grown = peak() - size
    return {"scores": scores, "grown": grown, "isolated": module.run_many.__globals__["DEFAULT"].isolated()}


print(json.dumps(tried(*json.loads(sys.argv[1]))))
