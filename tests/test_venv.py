"""tools/venv.sh with a stand-in for Python that only notes what it is asked: nothing is downloaded."""

import os
import shutil
import subprocess

import pytest
from conftest import ROOT

UTILITIES = ("sh", "cmp", "cp", "cat", "date", "dirname", "grep", "mkdir", "rm", "sed", "sort", "tr")

# answers as Python $version would; `-m venv` copies itself, `-m pip install` is noted and fails where a file says so
STAND_IN = """#!/bin/sh
case "$*" in
    --version) echo "Python {version}" ;;
    *"sys.version_info"*) exit {misfit} ;;
    *"sys.version.split"*) echo {version} ;;
    "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; echo venv >>"$TREE/log" ;;
    "-m pip install"*)
        [ ! -e "$TREE/no_network" ] || exit 1
        if [ -e "$TREE/absent" ] && case "$*" in *$(cat "$TREE/absent")*) ;; *) false ;; esac; then
            cat "$TREE/said" >&2
            exit 1
        fi
        shift 6
        echo "pip $*" >>"$TREE/log" ;;
    "-m pip uninstall"*) shift 6; echo "uninstall $*" >>"$TREE/log" ;;
esac
"""


class Tree:
    """A folder with tools/venv.sh, requirements and a PATH that holds the given stand-ins only."""

    def __init__(self, root, **pythons):
        self.root, self.path = root, root / "bin"
        (root / "tools").mkdir()
        self.path.mkdir()
        shutil.copy(ROOT / "tools" / "venv.sh", root / "tools")
        (root / "requirements.txt").write_text("torch==9.9  # first\nother==1.0  # then\n")
        for name in UTILITIES:
            (self.path / name).symlink_to(shutil.which(name))
        for name, version in pythons.items():
            self.add_python(name.replace("_", "."), version)

    def add_python(self, name: str, version: str) -> None:
        """Put a stand-in on the PATH."""
        fits = version.startswith(("3.11", "3.12", "3.13"))
        (self.path / name).write_text(STAND_IN.format(version=version, misfit=int(not fits)))
        (self.path / name).chmod(0o755)

    def setup(self, *name, **env) -> subprocess.CompletedProcess:
        """Run the script."""
        env = {"PATH": str(self.path), "TREE": str(self.root), **env}
        command = [str(self.path / "sh"), str(self.root / "tools" / "venv.sh"), *name]
        return subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=60)

    def log(self) -> list[str]:
        """What the stand-in was asked since the last call."""
        path = self.root / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [line.strip() for line in lines]


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path, python3="3.12.4")


INSTALL = ["pip torch==9.9", "pip -r requirements.txt"]


def test_first_set_up_makes_the_folder_and_installs_torch_first_then_what_changed(tree):
    done = tree.setup()
    assert done.returncode == 0 and "Python 3.12.4" in done.stdout and done.stderr == ""
    assert tree.log() == ["venv", *INSTALL]
    assert not (tree.root / ".venv" / "unfinished").exists()
    os.utime(tree.root / "requirements.txt")  # a fresh checkout touches the file without changing it
    done = tree.setup()
    assert (done.returncode, done.stdout, tree.log()) == (0, "", [])
    with (tree.root / "requirements.txt").open("a") as f:
        f.write("third==2.0  # new\n")
    assert tree.setup().returncode == 0 and tree.log() == INSTALL


def test_an_environment_that_works_is_kept_another_is_replaced_or_named(tree):
    folder, python = tree.root / ".venv", tree.root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/nowhere/python3")
    assert tree.setup().returncode == 0 and tree.log() == ["venv", *INSTALL]
    shutil.rmtree(folder)
    python.parent.mkdir(parents=True)
    shutil.copy(tree.path / "python3", python)  # made by something else
    (folder / "mine").touch()
    assert tree.setup().returncode == 0 and tree.log() == INSTALL and (folder / "mine").exists()
    shutil.rmtree(folder)
    python.parent.mkdir(parents=True)
    tree.add_python("python3.9", "3.9.1")
    shutil.copy(tree.path / "python3.9", python)
    done = tree.setup()
    assert done.returncode == 1 and "got .venv with Python 3.9.1" in done.stderr and "try" in done.stderr
    assert python.exists() and tree.log() == []


def test_too_old_a_python_or_none_gets_a_clear_message(tmp_path):
    tree = Tree(tmp_path, python3="3.10.12", python="3.14.0")
    done = tree.setup()
    assert done.returncode == 1 and done.stdout == ""
    assert "got python3 (3.10.12) python (3.14.0)" in done.stderr
    assert "expected Python 3.11, 3.12 or 3.13" in done.stderr and "try" in done.stderr
    assert not (tmp_path / ".venv").exists()
    for name in ("python3", "python"):
        (tree.path / name).unlink()
    done = tree.setup()
    assert done.returncode == 1 and "got no Python" in done.stderr
    done = tree.setup("trl")
    assert done.returncode == 2 and "got trl; expected" in done.stderr and "try sh tools/venv.sh verl" in done.stderr


LIST = """# index: https://wheels.test/cpu  (where torch lies)
# optional: torch==9.9+cpu engine-cpu  (not everywhere)
# remove: vision audio  (misfits)
torch==9.9+cpu  # first
engine-cpu==1.0  # then
"""
ABSENT = "ERROR: No matching distribution found for"
WHOLE = ["pip torch==9.9+cpu", "pip -r requirements-vllm.txt", "uninstall vision audio"]


def test_an_optional_package_that_is_absent_is_said_and_tried_again(tree):
    """Of a list whose comments mean something."""
    listed = tree
    (tree.root / "requirements-vllm.txt").write_text(LIST)
    (listed.root / "absent").write_text("-r")
    (listed.root / "said").write_text(f"{ABSENT} engine-cpu==1.0\n")
    done, folder = listed.setup("vllm"), listed.root / ".venv-vllm"
    assert done.returncode == 0 and done.stderr == ""
    assert "engine-cpu is not to be had from the package registry" in done.stdout
    assert (folder / "without").read_text() == "engine-cpu\n" and not (folder / "installed.txt").exists()
    assert listed.log() == ["venv", "pip torch==9.9+cpu"]
    (listed.root / "absent").unlink()
    assert listed.setup("vllm").returncode == 0 and listed.log() == WHOLE, "the folder is kept, its torch too"
    assert (folder / "installed.txt").read_text() == LIST and not (folder / "without").exists()
