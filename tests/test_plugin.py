"""The bundle as a plugin of Claude Code: manifests agree with the package and pass `claude plugin validate`."""

import json
import os
import re
import shutil
import subprocess

import pytest
from conftest import ROOT

PLUGIN, MARKETPLACE = (ROOT / ".claude-plugin" / f"{name}.json" for name in ("plugin", "marketplace"))


def test_manifests_agree_with_package_skill_and_each_other():
    plugin, market = (json.loads(path.read_text()) for path in (PLUGIN, MARKETPLACE))
    project = (ROOT / "pyproject.toml").read_text()
    (entry,) = market["plugins"]
    assert plugin["name"] == market["name"] == entry["name"] == "rl-training-code"
    assert plugin["description"] == entry["description"]
    assert f'\nversion = "{plugin["version"]}"\n' in project and f'\nlicense = "{plugin["license"]}"\n' in project
    assert (ROOT / entry["source"] / ".claude-plugin" / "plugin.json") == PLUGIN
    named = {"CITATION.cff": "version: ", "README.md": "Version ", "CHANGELOG.md": "## ["}
    for file, before in named.items():
        assert before + plugin["version"] in (ROOT / file).read_text(encoding="utf-8"), file
    for folder in plugin["skills"]:
        assert re.search(r"^name: rl-training-code$", (ROOT / folder / "SKILL.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", [PLUGIN, MARKETPLACE], ids=lambda path: path.stem)
@pytest.mark.skipif(not shutil.which("claude"), reason="no `claude` on PATH (npm package @anthropic-ai/claude-code)")
def test_claude_finds_the_manifest_valid(path, tmp_path):
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(["claude", "plugin", "validate", path], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
