"""tools/build.py on small trees: what a script holds, in which order, and what is refused."""

import ast
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, load_module

from parts.foundation.file_text import with_values

build = load_module(ROOT / "tools" / "build.py", "script_build")

check_texts = load_module(ROOT / "tools" / "check_texts.py", "script_check_texts")
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")

HEAD = '#!/usr/bin/env python3\n# /// script\n# requires-python = ">=3.11"\n# ///\n"""One sentence."""\n'
TREE = {
    "parts/low/words.py": '"""Words."""\n\nimport json\nimport math\n\n# why it is two\nTWO = 2\nUNUSED = 3\n\n\n'
    "def half(x):\n    return math.floor(x / TWO)\n\n\ndef text(x):\n    return json.dumps(x)\n",
    "parts/low/settings.py": '"""Settings."""\n\n\ndef setting(x):\n    return x\n',
    "parts/high/tables.py": '"""Tables."""\n\nfrom parts.low.words import half\n\nTABLE = {"half": half}\n',
    "parts/low/__init__.py": '"""Low."""\n\nROOMS = ("words", "settings")\n',
    "parts/high/__init__.py": '"""High."""\n\nROOMS = ("tables",)\n',
    "programs/one.py": HEAD
    + "\nimport sys\n\nfrom parts.low.words import half\n\n\ndef main():\n    return half(5)\n\n\n"
    'if __name__ == "__main__":\n    sys.exit(main())\n',
    "programs/two/__init__.py": HEAD + '\nROOMS = ("settings", "run")\n',
    "programs/two/settings.py": '"""Its settings."""\n\nfrom parts.low.settings import setting\n\nSIZE = setting(4)\n',
    "programs/two/run.py": '"""Its run."""\n\nfrom parts.high.tables import TABLE\n'
    "from programs.two.settings import SIZE\n\n\n"
    'def main():\n    return TABLE["half"](SIZE)\n',
}


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A function that writes TREE with changes into a folder and builds it there; returns the scripts' texts."""
    monkeypatch.setattr(build, "FLOORS", ("low", "high"))
    (tmp_path / "scripts").mkdir()

    def write(files=None, **changes):
        names = {name.replace("/", "_").removesuffix(".py"): name for name in TREE}
        for key in changes.keys() - names.keys():
            names[key] = f"parts/low/{key}.py"
        for key, name in names.items():
            path = tmp_path / "src" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(changes.get(key, TREE.get(name)))
        for name, text in (files or {}).items():
            (tmp_path / "src" / name).write_text(text)
        for path, text in build.differences(tmp_path):
            path.write_text(text)
        return {path.stem: path.read_text() for path in (tmp_path / "scripts").iterdir()}

    write.root = tmp_path
    return write


def test_script_holds_what_it_uses_and_nothing_else(tree):
    one = tree()["one"]
    assert "def half" in one and "# why it is two\nTWO = 2" in one and "import math" in one
    assert not any(word in one for word in ("UNUSED", "def text", "import json", "TABLE", "from parts", "setting"))
    assert subprocess.run([sys.executable, tree.root / "scripts/one.py"]).returncode == 2  # floor(5 / 2)
    lines = one.split("\n")
    assert lines[0] == "#!/usr/bin/env python3" and "src/programs/one.py" in lines[1] and "copy is yours" in lines[2]
    assert lines[3] == "# /// script" and ast.get_docstring(ast.parse(one)) == "One sentence."


def test_sections_stand_in_the_order_of_the_floors_and_the_table_of_contents_gives_their_lines(tree):
    built = tree()
    places = [built["two"].index(text) for text in ("def half", "def setting", "TABLE =", "SIZE =", "def main")]
    assert places == sorted(places) and "settings (src/programs/two/settings.py)" in built["two"]
    for text in built.values():
        lines = text.split("\n")
        table = lines[lines.index("# Contents") + 1 : lines.index("", lines.index("# Contents"))]
        headings = {i: line for i, line in enumerate(lines, 1) if line.startswith("# ----")}
        assert len(table) == len(headings)
        ends = [*list(headings)[1:], len(lines) + 2]
        for entry, (start, heading), following in zip(table, headings.items(), ends, strict=True):
            place, title, _ = re.fullmatch(r"# +([\d-]+)  (.+?)  +(.+)", entry).groups()
            assert place == f"{start}-{following - 3}" and f"- {title} (src/" in heading


def check_form(path) -> None:
    """What was built has the formatter's form and imports what it uses."""
    for command in (["format", "--check"], ["check", "--select", "F,I,W,E9"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--no-cache", "--config", str(ROOT / "pyproject.toml")]
        done = subprocess.run([*ruff, str(path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_building_twice_gives_the_same_bytes_in_the_formatters_form(tree):
    first = tree()
    assert list(build.differences(tree.root)) == [] and tree() == first
    check_form(tree.root / "scripts")


TEXTS = [
    "<p>one</p>\n  two\n",
    "/\\d+\\\\/\n\\\n",
    'say """yes"""\n',
    "\"\"\" and ''' and \\n \u2028 \x0c \x00 \t {x}\r\n'a' \"b\"\n",
    'a "b"',
    "C:\\",
    '"""A program."""\n\nWORD = r"\\d\\n"\n',
    "",
]


def test_a_script_holds_the_texts_of_files(tree):
    room = '"""Its run."""\n\nfrom parts.low.file_text import file_text\n\n'
    room += "".join(f'# text {i}\nTEXT_{i} = file_text("{i}.txt")\n' for i in range(len(TEXTS)))
    room += "\n\ndef main():\n    return " + ", ".join(f"TEXT_{i}" for i in range(len(TEXTS))) + "\n"
    files = {f"programs/two/{i}.txt": text for i, text in enumerate(TEXTS)}
    files["parts/low/__init__.py"] = '"""."""\nROOMS = ("words", "settings", "file_text")'
    part = (ROOT / "src/parts/foundation/file_text.py").read_text()
    tree(files, programs_two_run=room, file_text=part)
    script = tree.root / "scripts/two.py"
    assert "\n# text 0\nTEXT_0 = " in script.read_text() and "file_text(" not in script.read_text()
    built = load_module(script, "script_with_texts")
    for i in range(len(TEXTS)):
        assert vars(built)[f"TEXT_{i}"] == (tree.root / f"src/programs/two/{i}.txt").read_text()
    check_form(script)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.html", "{% if x %}<p>{{ x }}</p>{% endif %}<br>\n", ""),
        ("a.html", "<p>\n<b></p>\n", "line 2: got </p>; expected </b> of line 2"),
        ("a.css", "a {\n color red;\n}\n", "line 2: got 'color red'"),
        ("a.sbatch", "if true; then\n", "syntax error"),
        pytest.param("a.js", "const a = ;\n", "SyntaxError", marks=needs_node),
    ],
)
def test_texts_are_checked(tmp_path, capsys, name, text, message):
    (tmp_path / name).write_text(text)
    assert check_texts.main(tmp_path) == bool(message) and message in capsys.readouterr().out


def test_a_texts_places_are_filled_once():
    text = 'a = "{a}"  # {b}, ${c}, "{a} and"\n'
    assert with_values(text, a="['{b}']", b=1) == "a = ['{b}']  # 1, ${c}, \"['{b}'] and\"\n"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parts_low_words": "from .tables import TABLE\n"}, "no relative import"),
        ({"parts_low_words": "print(1)\n"}, "runs at import"),
        ({"parts_low_words": "def half(x):\n    from parts.high.tables import TABLE\n"}, "inside a function"),
        ({"parts_low_words": "from parts.high.tables import TABLE\n\nhalf = TABLE\n"}, "one of the floors below"),
        ({"programs_two_settings": "from programs.two.run import main\n\nSIZE = main\n"}, "one of the floors below"),
        ({"programs_two_settings": "from parts.low.settings import other\n\nSIZE = other\n"}, "does not define it"),
        ({"programs_two_settings": "def f():\n    return missing\n\n\nSIZE = 1\n"}, "neither defined nor imported"),
        ({"programs_two_settings": "def half():\n    pass\n\n\nSIZE = 1\n"}, "expected one thing of a name"),
        ({"programs_two_settings": "SIZE = later()\n\n\ndef later():\n    return 1\n"}, "used at import"),
        ({"parts_low_words": 'TWO = file_text("none.txt")\n'}, "none.txt; expected such a file in low/"),
        ({"parts_low_words": 'TWO = {1: file_text("words.py")}\n'}, "expected NAME = file_text"),
        ({"extra": '"""A part that no floor names."""\n'}, "without or beyond extra"),
    ],
)
def test_refuses(tree, changes, message):
    with pytest.raises(build.BuildError, match=message):
        tree(**changes)


def test_the_picture_of_the_floors_shows_their_imports():
    drawn = set(re.findall(r"^  (\w+) --> (\w+)$", (ROOT / "src/README.md").read_text("utf-8"), re.M))
    imported = set()
    for path in (ROOT / "src" / "parts").glob("*/*.py"):
        sources = re.findall(r"^from parts\.(\w+)", path.read_text("utf-8"), re.M)
        imported |= {(source, path.parent.name) for source in sources}
    between = {(source, floor) for source, floor in imported if source not in ("foundation", floor)}
    assert {edge for edge in drawn if edge[1] != "programs"} == between
    assert all(build.FLOORS.index(source) < build.FLOORS.index(floor) for source, floor in between)
