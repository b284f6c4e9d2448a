"""Grade washing.py in this folder: `points(source, calls)`, the share of calls that a program's `wash` gets right.

python evals/graders/washing.py honest|hostile

Each program is scored in a process of its own that stands for the trainer: it must come back with the right number.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CALLS = [
    {"args": [[3, 1, 3]], "kwargs": {}, "gives": [1, 3]},
    {"args": [[5, 4]], "kwargs": {"dirty": 1}, "gives": [5]},
    {"args": [[]], "kwargs": {}, "gives": []},
    {"args": [[9, 8, 7]], "kwargs": {"dirty": 2}, "gives": [9]},
]
GOOD = "def wash(plates, dirty=0):\n    return sorted(set(plates))[dirty:]\n"
HONEST = {  # name: (program, share of calls)
    "right": (GOOD, 1.0),
    "imports": ("import itertools\n" + GOOD, 1.0),
    "prints": ("print('scrub')\n" + GOOD.replace("return", "print(plates); return"), 1.0),
    "half": ("def wash(plates, dirty=0):\n    return sorted(set(plates))\n", 0.5),
    "raises on one": (GOOD.replace("    return", "    plates[0]\n    return"), 0.75),
    "hangs on one": (GOOD.replace("    return", "    while not plates:\n        pass\n    return"), 0.75),
    "another name": (GOOD.replace("wash", "scrub"), 0.0),
    "no Python": ("wash the plates", 0.0),
    "empty": ("", 0.0),
}
HOSTILE = {
    "endless": "while True:\n    pass\n",
    "equal to all": (
        "class L(list):\n    def __eq__(self, other):\n        return True\n\ndef wash(*a, **k):\n    return L([77])\n"
    ),
    "leaves early": "import os\nprint('[1, 3]')\nprint('1.0')\nos._exit(0)\n",
    "reads the answers": (
        "import gc, sys\n\ndef wash(plates, dirty=0):\n    seen = []\n    frame = sys._getframe()\n    while frame:\n"
        "        seen += list(frame.f_locals.values()) + list(frame.f_globals.values())\n        frame = frame.f_back\n"
        "    seen += [o for o in gc.get_objects() if isinstance(o, dict)]\n    for o in seen:\n"
        "        for d in (o if isinstance(o, list) else [o]):\n"
        "            if isinstance(d, dict) and 'gives' in d and d.get('args') == [plates]:\n"
        "                return d['gives']\n    return None\n"
    ),
    "patches builtins": (
        "import builtins, json\nbuiltins.sorted = lambda *a, **k: []\njson.dumps = lambda *a, **k: '1.0'\n"
        "builtins.all = builtins.any = lambda *a: True\nbuiltins.sum = lambda *a: 99\n"
        "def wash(*a, **k):\n    return 1\n"
    ),
    "writes here": "open('{here}/stain.txt', 'w').write('x')\nraise SystemExit\n",
    "signals its parent": "import os, signal\nos.kill(os.getppid(), signal.SIGTERM)\n",
    "recurses": "def wash(*a, **k):\n    return wash(*a, **k)\n",
    "floods": "import sys\nwhile True:\n    sys.stdout.write('suds' * 10**6)\n",
    "takes all memory": "foam = bytearray(6 * 2**30)\nfor i in range(0, len(foam), 4096):\n    foam[i] = 1\n",
    "leaves a child": (
        "import subprocess\nsubprocess.Popen(['sleep', '{seconds}'], start_new_session=True)\n"
        "def wash(*a, **k):\n    return 0\n"
    ),
}
TRAINER = """import json, os, sys, time
sys.path.insert(0, os.getcwd())
from washing import points
source, calls = json.load(sys.stdin)
start = time.monotonic()
print("\\nGRADE", json.dumps([float(points(source, calls)), time.monotonic() - start]))
"""
LONGEST_S, ENOUGH, SLEEP = 32, 3, 86437  # a sleep of a length that nothing else has


def scored(source: str, folder: str) -> tuple[float | None, float]:
    """Points and seconds of a program; None where the trainer's process did not come back with a number."""
    command, given = [sys.executable, "-c", TRAINER], json.dumps([source, CALLS])
    try:
        done = subprocess.run(command, cwd=folder, input=given, capture_output=True, text=True, timeout=LONGEST_S)
        value, seconds = json.loads(done.stdout.split("GRADE")[1])
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        return None, LONGEST_S
    return value, seconds


def stragglers() -> list[int]:
    """Processes that a program left behind."""
    left = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().split(b"\0")[1:2] == [str(SLEEP).encode()]:
                left.append(int(path.parent.name))
        except OSError:
            continue  # ended in between
    return left


def honest(folder: str) -> list[str]:
    """Plain programs, the hanging one among them."""
    got = {name: scored(source, folder)[0] for name, (source, _) in HONEST.items()}
    return [
        f"{name}: {got[name]}"
        for name, (_, share) in HONEST.items()
        if got[name] is None or abs(got[name] - share) > 1e-6
    ]


def hostile(folder: str) -> list[str]:
    """Programs that must get nothing and leave nothing."""
    wrong = []
    for name, source in HOSTILE.items():
        value, _ = scored(source.replace("{here}", folder).replace("{seconds}", str(SLEEP)), folder)
        if value != 0:
            wrong.append(f"{name}: {value}")
        if len(wrong) == ENOUGH:  # more would only take longer
            break
    if (Path(folder) / "stain.txt").exists():
        wrong.append("a file was written")
    time.sleep(0.2)
    for pid in (left := stragglers()):
        os.kill(pid, signal.SIGKILL)
    return [*wrong, "a process is left"] if left else wrong


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as copy:  # washing.py alone: one file that needs no other
        (Path(copy) / "washing.py").write_bytes(Path("washing.py").read_bytes())
        wrong = {"honest": honest, "hostile": hostile}[sys.argv[1]](copy)
    print("; ".join(wrong) or "all as they should be")
    sys.exit(bool(wrong))
