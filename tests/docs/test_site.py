"""The site builds without a warning, and shows examples of docstrings as code."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("griffe") is None,
    reason="mkdocs is not installed: pip install 'mase[docs]'",
)
def test_the_site_builds_strictly(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"]
    done = subprocess.run([*command, tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr.strip()
    reference = (tmp_path / "api" / "quantizers.html").read_text()
    assert "chop.nn.quantizers.integer.Integer" in reference
    assert "&gt;&gt;&gt; </span>" in reference and "<blockquote>" not in reference
