"""Who may import whom, and what stays light: read off the source, and proved in fresh interpreters.

``apprentice`` <- ``actors``, ``serve`` <- ``driver``. The library knows neither ray nor the engines; torch is
imported at the top of a module only where tensors are the subject; the engines only inside functions.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
LAYERS = {
    "apprentice": {"apprentice"},
    "actors": {"apprentice", "actors"},
    "serve": {"apprentice", "actors", "serve"},
    "driver": {"apprentice", "actors", "serve", "driver"},
}
"""Package -> the packages of ours that it may import."""
NEVER_IN_APPRENTICE = {"ray", "vllm", "deepspeed"}
ONLY_INSIDE_FUNCTIONS = {"vllm", "deepspeed"}
IMPORTED_BY_VLLM = "actors/weight_transfer_engine.py"
"""The one module that may import vllm at its top: vLLM itself imports it, and nothing of ours does."""
TORCH_AT_THE_TOP = ("apprentice/objectives/", "apprentice/learning/")
"""Where tensors are the subject. Elsewhere in the library torch is imported inside functions."""


def _imports(tree: ast.AST, *, inside: bool = False) -> Iterator[tuple[str, bool, int]]:
    """Top-level name of every imported module, whether it stands inside a function, and its line.

    Imports for type checkers only (``if TYPE_CHECKING:``) never run and are left out.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.split(".")[0], inside, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0], inside, node.lineno
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                yield from _imports(child, inside=inside)
        else:
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(node, inside=inside or function)


def violations(path: str, source: str) -> list[str]:
    """What in one source file breaks the rules; ``path`` is relative to the repository."""
    package = path.split("/")[0]
    found = []
    for name, inside, line in _imports(ast.parse(source)):
        where = f"{path}:{line}"
        if name in LAYERS and name not in LAYERS[package]:
            found.append(f"{where}: {package} imports {name}")
        if package == "apprentice" and name in NEVER_IN_APPRENTICE:
            found.append(f"{where}: the library imports {name}")
        if name in ONLY_INSIDE_FUNCTIONS and not inside and path != IMPORTED_BY_VLLM:
            found.append(f"{where}: {name} is imported outside a function")
        if (
            package == "apprentice"
            and name == "torch"
            and not inside
            and not path.startswith(TORCH_AT_THE_TOP)
        ):
            found.append(f"{where}: torch is imported at the top of a module that is not about tensors")
    return found


SOURCES = sorted(str(path.relative_to(ROOT)) for package in LAYERS for path in (ROOT / package).rglob("*.py"))


def test_no_module_breaks_the_import_rules() -> None:
    assert len(SOURCES) > 40
    found = [line for path in SOURCES for line in violations(path, (ROOT / path).read_text(encoding="utf-8"))]
    assert found == []


def test_nothing_of_ours_imports_the_module_that_vllm_imports() -> None:
    module = Path(IMPORTED_BY_VLLM).stem
    importing = [
        path
        for path in SOURCES
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        and module in ast.unparse(node).replace(".", " ").split()
    ]
    assert (ROOT / IMPORTED_BY_VLLM).is_file() and importing == []


@pytest.mark.parametrize(
    ("path", "source", "count"),
    [
        ("apprentice/a.py", "import ray", 1),
        ("apprentice/a.py", "def f():\n    from vllm.engine import x", 1),
        ("apprentice/a.py", "from driver.run import train", 1),
        ("apprentice/a.py", "import torch", 1),
        ("apprentice/a.py", "def f():\n    import torch", 0),
        ("apprentice/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch", 0),
        ("apprentice/objectives/a.py", "import torch.nn.functional as F", 0),
        ("actors/a.py", "import ray\nimport torch", 0),
        ("actors/a.py", "import deepspeed", 1),
        ("actors/a.py", "class A:\n    def f(self):\n        import deepspeed", 0),
        ("actors/a.py", "from serve.expert import x", 1),
        ("driver/a.py", "import actors, serve, apprentice, ray", 0),
        ("driver/a.py", "try:\n    import vllm\nexcept ImportError:\n    pass", 1),
    ],
)
def test_the_rules_find_what_they_forbid(path: str, source: str, count: int) -> None:
    assert len(violations(path, source)) == count


def _loaded(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sorted(n for n in sys.modules if '.' not in n))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["apprentice.config.load", "driver.cli", "driver.plan"])
def test_configuration_and_command_line_load_no_heavy_package(module: str) -> None:
    heavy = {"torch", "ray", "vllm", "deepspeed", "transformers", "pyarrow", "matplotlib"}
    assert heavy & _loaded(f"import {module}") == set()


def test_importing_the_whole_library_loads_neither_ray_nor_an_engine() -> None:
    modules = [
        path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        for path in SOURCES
        if path.startswith("apprentice/") and not path.endswith("__main__.py")
    ]
    loaded = _loaded("import " + ", ".join(modules))
    assert {"ray", "vllm", "deepspeed"} & loaded == set()
    assert "apprentice" in loaded


def test_every_package_of_the_repository_has_its_place_in_the_layers() -> None:
    packages = {p.parent.name for p in ROOT.glob("*/__init__.py")} - {"tests"}
    assert packages == set(LAYERS)
