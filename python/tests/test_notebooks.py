"""Test that each notebook in `examples/notebooks` runs from top to bottom."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))


def test_at_least_five_notebooks_are_tested() -> None:
    assert len(NOTEBOOKS) >= 5


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_notebook_runs_from_top_to_bottom(notebook: Path, tmp_path: Path) -> None:
    cells = json.loads(notebook.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) >= 3
    # Readers run the notebooks to see results, so no results are stored in the files.
    assert all(cell["outputs"] == [] for cell in cells if cell["cell_type"] == "code")
    program = tmp_path / "notebook.py"
    program.write_text("\n\n".join(code))
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    ran = subprocess.run(
        [sys.executable, program], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
