"""Importing a module of ours changes nothing of the process that whoever imports it has set."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.test_imports import OURS, PACKAGES, ROOT, module_name, sources

SNAPSHOT = """
import faulthandler, json, locale, logging, os, signal, sys, threading, warnings

def snapshot():
    import jax
    import numpy as np
    loggers = {"": logging.root} | {k: v for k, v in logging.root.manager.loggerDict.items() if hasattr(v, "filters")}
    return {
        "logging": {
            name: [str(x) for x in (one.filters, one.handlers, one.level, one.propagate)]
            for name, one in loggers.items()
            if one.filters or one.handlers or one.level or not one.propagate
        },
        "warnings": [str(one) for one in warnings.filters],
        "environment": dict(os.environ),
        "signals": {str(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
        "jax": {name: str(value) for name, value in jax.config.values.items()},
        "hooks": [str(x) for x in (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.displayhook)],
        "streams": [str(x) for x in (sys.stdout, sys.stderr)],
        "others": [sys.getrecursionlimit(), faulthandler.is_enabled(), str(np.geterr()), locale.setlocale(0)],
        "path": list(sys.path),
        "folder": os.getcwd(),
    }
"""
PROGRAM = """
import importlib, sys
sys.path.insert(0, {root!r})
{theirs}
before = snapshot()
for name in {ours!r}:
    importlib.import_module(name)
after = snapshot()
print(json.dumps([[before[key], after[key]] for key in before if before[key] != after[key]]))
"""


def imports_of_others(paths: list[Path]) -> list[str]:
    """Statements by which files import what is not ours when they are imported themselves."""
    lines = set()
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                lines |= {f"import {alias.name}" for alias in node.names if alias.name.split(".")[0] not in OURS}
            elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] not in OURS:
                lines |= {
                    f"from {node.module} import {alias.name}" for alias in node.names if node.module != "__future__"
                }
    return sorted(lines)


def changed_by(paths: list[Path], root: Path) -> list[list[object]]:
    """What differs after files are imported in a fresh process that has imported the packages of others before.

    MUJOCO_GL, which a simulator opened by a test before this one may have set, is unset: with it MuJoCo, which is
    imported by a function of ours, sets PYOPENGL_PLATFORM.
    """
    theirs = "\n".join([*imports_of_others(paths), SNAPSHOT])
    program = PROGRAM.format(root=str(root), theirs=theirs, ours=[module_name(path, root) for path in paths])
    environment = {name: value for name, value in os.environ.items() if name not in {"MUJOCO_GL", "PYOPENGL_PLATFORM"}}
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout.splitlines()[-1])


def test_importing_all_modules_changes_nothing():
    paths = sources("chunkwise", *PACKAGES)
    assert len(paths) > 200
    assert changed_by(paths, ROOT) == []


def test_a_change_is_seen(tmp_path: Path):
    """One module for each kind of change."""
    changes = {
        "logs": "import logging\nlogging.getLogger('absl').addFilter(print)",
        "warns": "import warnings\nwarnings.simplefilter('ignore')",
        "sets": "import os\nos.environ['CHUNKWISE_TEST'] = '1'",
        "signals": "import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)",
        "configures": "import jax\njax.config.update('jax_enable_x64', True)",
        "hooks": "import sys\nsys.unraisablehook = print",
    }
    for name, text in changes.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert len(changed_by(sorted(tmp_path.glob("*.py")), tmp_path)) == len(changes)
