"""A test that needs PyPI packages goes on in a Python that has them.

The packages come from build/venv, which deploy/test makes of tests/tools/requirements.txt and, with
--no-deps, of requirements-no-deps.txt; the venv is made here when there is none, or completed. All
builds share it, since it has nothing of Tarn. The test is skipped where the packages cannot be had.
"""
from __future__ import annotations

import os
import subprocess
import sys
from typing import Callable

from http_helpers import tarn_test

VENV = tarn_test.REPO / "build" / "venv"
VENV_PYTHON = VENV / "bin" / "python3"
INSTALL_SECONDS = tarn_test.patience(240)
HAS_MODULES = """
import importlib.util, pathlib, sys
for name in sys.argv[1:]:
    top, *rest = name.split(".")
    spec = importlib.util.find_spec(top)
    folders = spec.submodule_search_locations or [] if spec else []
    there = (pathlib.Path(folder, *rest) for folder in folders)
    if not (any(p.is_dir() or p.with_suffix(".py").is_file() for p in there) if rest else spec):
        sys.exit(1)
"""


def has_modules(python: str, modules: tuple[str, ...]) -> bool:
    """Whether their files are there. They are not imported, which takes seconds."""
    return subprocess.run([python, "-c", HAS_MODULES, *modules]).returncode == 0


def pip_install(*what: str) -> None:
    try:
        done = subprocess.run([str(VENV_PYTHON), "-m", "pip", "install", "-q", *what],
                              capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        tarn_test.skip("pip does not run, or takes too long")
    if done.returncode:
        tarn_test.skip(f"packages cannot be had: {done.stderr.strip()[-200:]}")


def use_venv(*modules: str, env: Callable[[], dict[str, str]] = dict) -> None:
    """Return if the modules import; else run the test in the venv and exit with its status.
    env: variables for that run, made by this Python."""
    if has_modules(sys.executable, modules):
        return
    if os.environ.get("TARN_TEST_IN_VENV"):
        tarn_test.skip(f"{', '.join(modules)}: not all of them import")
    if not VENV_PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", str(VENV)],
                       check=False)
    if not has_modules(str(VENV_PYTHON), modules):
        pip_install("-r", str(tarn_test.TOOLS / "requirements.txt"))
        pip_install("--no-deps", "-r", str(tarn_test.TOOLS / "requirements-no-deps.txt"))
    run = subprocess.run([str(VENV_PYTHON), *sys.argv],
                         env={**os.environ, "TARN_TEST_IN_VENV": "1", **env()})
    sys.exit(run.returncode)
