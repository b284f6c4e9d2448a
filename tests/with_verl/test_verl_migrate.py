"""Jobs of old versions that scripts/migrate.py wrote anew, composed with verl's own configuration."""

import pytest
from conftest import ROOT, load_script

migrate = load_script("migrate")
FILES = ROOT / "tests" / "files" / "migrate"
JOBS = sorted(p.name for p in FILES.glob("verl_*.sh") if "recipe" not in p.name and "variables" not in p.name)


@pytest.mark.parametrize("name", JOBS)
def test_a_new_job_composes(name, capsys):
    assert migrate.main([str(FILES / name), "--from", f"verl=={name.split('_')[1]}"]) == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert "composed with verl's own configuration" in said or "needs no change" in said
