"""What importing whorl costs, which way its imports point, and what the wheel holds."""

from __future__ import annotations

import ast
import email
import graphlib
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import whorl
from whorl import registry

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "whorl"

# Law 5 of design.md: a room imports from its own line and from those above it. Files beside the rooms are formulas.
LAYERS = (
    {"formulas", "dialects", "rotary"},
    {"kernels"},
    {"encodings"},
    {"attend"},
    {"models"},
    {"claims", "analysis", "plot"},
    {"lab"},
    {"bridge", "web"},
    {"benchmarks"},
    {"cli"},
)
RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}

# Late imports that may point up, by module and room, and why.
MAY_POINT_UP = {
    ("whorl.registry", "encodings"): "a table of names holds import paths, and a class is imported once it is asked for"
}

# What a room may import at the top of a file beside the standard library; extras are imported where they are used.
FOREIGN = {"torch", "numpy"}
FOREIGN_BY_ROOM = {"cli": {"typer"}}

EXTRAS = {"cpu", "triton", "plot", "lab", "ray", "tensorboard", "hf", "onnx", "cli", "all", "dev"}


def python(code: str, *arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """What a fresh process prints that runs this code; it must end well."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **(env or {})},
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# -- imports, as they happen ------------------------------------------------------------------------------------------


def test_importing_whorl_imports_neither_torch_nor_numpy_until_a_name_needs_them():
    said = python(
        "import sys, whorl\n"
        "whorl.__version__, whorl.names(), dir(whorl), whorl.WhorlError, whorl.Config\n"
        "before = {'torch', 'numpy'} & set(sys.modules)\n"
        "whorl.Rope\n"
        "print(sorted(before), 'torch' in sys.modules)"
    )
    assert said == "[] True"


def test_every_public_name_resolves_and_adds_to_torch_only_whorl_itself():
    # torch._dynamo among them: it brings 800 modules and doubles the import, and is for those who compile
    said = python(
        "import sys, torch, numpy\n"
        "before = set(sys.modules)\n"
        "import whorl\n"
        "for name in whorl.__all__: getattr(whorl, name)\n"
        "added = set(sys.modules) - before\n"
        "foreign = {name.partition('.')[0] for name in added} - set(sys.stdlib_module_names) - {'torch', 'numpy'}\n"
        "print(sorted(foreign), 'torch._dynamo' in added)"
    )
    assert said == "['whorl'] False"


def test_an_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'whorl' has no attribute 'ropes'"):
        whorl.ropes  # noqa: B018


def test_without_typer_the_command_names_what_to_install():
    blocked = (
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == sys.argv[1]:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
        "from whorl.cli import main\n"
        "main()\n"
    )
    for package in ("typer", "rich"):
        done = subprocess.run([sys.executable, "-c", blocked, package], capture_output=True, text=True)
        assert done.returncode == 2 and done.stdout == ""
        assert done.stderr == (
            f"whorl: the command line is not installed (No module named '{package}'). Run: pip install \"whorl[cli]\"\n"
        )


# -- imports, as they are written -------------------------------------------------------------------------------------


def module_of(path: Path) -> str:
    parts = ("whorl", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """The room a module lives in: its folder below whorl, "cli" for what ``python -m whorl`` runs, or "formulas" for
    any other file beside the folders.
    """
    first = module.split(".")[1]
    if first == "__main__":
        return "cli"
    return first if (SOURCE / first).is_dir() else "formulas"


def imports(tree: ast.AST, package: str, at_top: bool = True) -> Iterator[tuple[str, bool]]:
    """Each module imported at run time, and whether at the top of the file; TYPE_CHECKING blocks do not run.

    Modules named in strings count as late imports: "whorl.encodings.rope:Rope", and "whorl.encodings" in
    f"whorl.encodings.{name}".
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from imports(ast.Module(node.orelse, []), package, at_top)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, at_top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            home = importlib.util.resolve_name(name, package) if node.level else name
            for alias in node.names:
                yield target_of(home, alias.name), at_top
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "whorl":
            yield target_of("whorl", node.attr), at_top
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            path = re.fullmatch(r"(whorl(?:\.\w+)+)(?::\w+)?", node.value)
            yield from [(path[1], False)] if path and is_module(path[1]) else ()
        elif isinstance(node, ast.JoinedStr):
            path = re.match(r"f['\"](whorl(?:\.\w+)+)\.\{", ast.unparse(node))
            yield from [(path[1], False)] if path else ()
        else:
            inner = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from imports(node, package, at_top and not inner)


def is_module(path: str) -> bool:
    file = SOURCE.joinpath(*path.split(".")[1:])
    return file.with_suffix(".py").exists() or (file / "__init__.py").exists()


def target_of(home: str, name: str) -> str:
    """The module that ``from home import name`` reads: a submodule, or for whorl itself the home of a public name."""
    if home.partition(".")[0] != "whorl":
        return home
    if is_module(f"{home}.{name}"):
        return f"{home}.{name}"
    return whorl._HOMES[name] if home == "whorl" and name in whorl._HOMES else home


@cache
def source_imports() -> tuple[tuple[str, str, bool], ...]:
    """Every import of the sources: in which module, of which, and whether at the top of the file."""
    return tuple(imports_of_files())


def imports_of_files() -> Iterator[tuple[str, str, bool]]:
    for path in sorted(SOURCE.rglob("*.py")):
        module = module_of(path)
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for target, at_top in imports(ast.parse(path.read_text(encoding="utf-8")), package):
            yield module, target, at_top


def upward(found: Iterable[tuple[str, str, bool]]) -> list[tuple[str, str, bool]]:
    """The imports that point up, inside functions too: a late import hides a dependency, it does not turn it round."""
    inside = [one for one in found if one[1].partition(".")[0] == "whorl" and "whorl" not in one[:2]]
    return [(module, target, top) for module, target, top in inside if RANK[room_of(target)] > RANK[room_of(module)]]


def may_point_up(module: str, target: str, at_top: bool) -> bool:
    return not at_top and (module, room_of(target)) in MAY_POINT_UP


def test_every_room_has_a_place_among_the_layers():
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert rooms <= set(RANK), f"say in LAYERS where {rooms - set(RANK)} stands"


def test_imports_point_down():
    assert [one for one in upward(source_imports()) if not may_point_up(*one)] == []


def test_what_may_point_up_does():
    used = {(module, room_of(target)) for module, target, _ in upward(source_imports())}
    assert used >= set(MAY_POINT_UP)


def test_every_name_of_the_registry_is_seen():
    seen = {target for module, target, _ in source_imports() if module == "whorl.registry"}
    tables = (registry.ENCODINGS, registry.SCALINGS, registry.JOINED)
    paths = {path.partition(":")[0] for table in tables for path in table.values() if isinstance(path, str)}
    assert len(paths) > 30 and paths <= seen


def test_the_package_itself_imports_nothing_at_run_time():
    """But the reader of its stub, which imports nothing either."""
    packages = {"whorl", "whorl.lazy_names"}
    targets = {target for module, target, at_top in source_imports() if module in packages and at_top} - packages
    assert not {target for target in targets if target.partition(".")[0] not in sys.stdlib_module_names}


def test_no_import_goes_round_in_a_circle():
    graph: dict[str, set[str]] = {}
    for module, target, at_top in source_imports():
        if at_top and target.partition(".")[0] == "whorl":
            graph.setdefault(module, set()).add(target)
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_files_import_only_what_whorl_depends_on():
    bad = [
        f"{module} imports {target}"
        for module, target, at_top in source_imports()
        if at_top
        and (top := target.partition(".")[0]) not in {"whorl", *sys.stdlib_module_names}
        and top not in FOREIGN | FOREIGN_BY_ROOM.get(room_of(module) if module != "whorl" else "", set())
        # imported when a kernel is to run
        and not (
            top == "triton"
            and (
                "triton" in module.rpartition(".")[2]
                or module.startswith(("whorl.kernels.tiles.", "whorl.kernels.linear."))
            )
        )
    ]
    assert bad == []


def test_no_file_calls_torch_jit_whose_warnings_the_tests_let_pass():
    paths = sorted(SOURCE.rglob("*.py"))
    assert len(paths) > 100 and [path for path in paths if "torch.jit" in path.read_text()] == []


def test_the_command_line_and_the_registries_need_no_torch():
    light = [
        module_of(path)
        for path in (*SOURCE.glob("cli/*.py"), SOURCE / "kernels/choose.py", SOURCE / "benchmarks/registry.py")
        if path.name != "__main__.py"
    ]
    assert len(light) > 5
    said = python(
        "import sys, importlib\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "print(sorted({'torch', 'numpy'} & set(sys.modules)))",
        *light,
        "whorl.registry",
        "whorl.config",
        "whorl.errors",
    )
    assert said == "[]"


def test_readers_of_foreign_configs_need_no_torch():
    late = {
        target.partition(".")[0]
        for module, target, _ in source_imports()
        if module.startswith("whorl.dialects") and target.partition(".")[0] not in sys.stdlib_module_names
    }
    assert late == {"whorl"}
    readers = [module_of(path) for path in SOURCE.glob("dialects/*.py")]
    assert len(readers) > 5
    said = python(
        "import sys, importlib\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "from whorl.dialects.transformers import read_rotation\n"
        "scaling = {'rope_type': 'yarn', 'factor': 40, 'mscale_all_dim': 1.0}\n"
        "config = {'model_type': 'deepseek_v3', 'qk_rope_head_dim': 64, 'max_position_embeddings': 4096}\n"
        "read = read_rotation(config | {'rope_scaling': scaling})\n"
        "print(read['head_dim'], read['scaling']['name'], sorted({'torch', 'numpy'} & set(sys.modules)))",
        *readers,
    )
    assert said == "64 yarn []"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from whorl.cli.app import run", ["whorl.cli.app"]),
        ("import whorl.encodings.rope", ["whorl.encodings.rope"]),
        ("import whorl\nwhorl.Rope", ["whorl.encodings.rope"]),
        ("import whorl\ndef late():\n    return whorl.models", ["whorl.models"]),
        ("from whorl import Rope", ["whorl.encodings.rope"]),
        ("from whorl import encodings", ["whorl.encodings"]),
        ("from ..encodings import rope", ["whorl.encodings.rope"]),
        ("def late():\n    from whorl.encodings import rope", ["whorl.encodings.rope"]),
        ("if TYPE_CHECKING:\n    from whorl.encodings import rope", []),
        ("if TYPE_CHECKING: pass\nelse: from whorl.cli import app", ["whorl.cli.app"]),
        ("from whorl.errors import WhorlError\nfrom whorl.rotary import tables\nimport torch", []),
        ('TABLE = {"rope": "whorl.encodings.rope:Rope"}', ["whorl.encodings.rope"]),
        ('TABLE = {"yarn": "whorl.rotary.scalings.yarn:Yarn"}', []),
        ('import_module("whorl.cli.app")', ["whorl.cli.app"]),
        ('import_module(f"whorl.claims.{topic}")', ["whorl.claims"]),
        ('"whorl.encodings.rope is a module"', []),
    ],
)
def test_the_walk_sees_what_points_up(text, expected):
    module, package = "whorl.kernels.rotate", "whorl.kernels"
    found = [(module, target, at_top) for target, at_top in imports(ast.parse(text), package)]
    assert [target for _, target, _ in upward(found)] == expected


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ('TABLE = {"rope": "whorl.encodings.rope:Rope"}', True),
        ("from whorl.encodings.rope import Rope", False),
        ('TABLE = {"decoder": "whorl.models.decoder:Decoder"}', False),
    ],
)
def test_only_what_is_named_may_point_up(text, allowed):
    found = [("whorl.registry", target, at_top) for target, at_top in imports(ast.parse(text), "whorl")]
    assert [may_point_up(*one) for one in upward(found)] == [allowed]


def test_all_installs_only_what_some_file_imports():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (names,) = (re.search(r"\[(.*)\]", line).group(1).split(",") for line in extras["all"])
    packages = {re.match(r"[\w-]+", line).group() for name in names for line in extras[name]}
    imported = {target.partition(".")[0] for _, target, _ in source_imports()}
    assert len(packages) > 5 and packages - imported == set()


# -- the wheel --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_wheel_holds_the_package_alone_and_runs_where_it_is_installed(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist", ROOT],
        check=True,
        capture_output=True,
    )
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    check_contents(wheel)

    home = tmp_path / "installed"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
        + ["--disable-pip-version-check", "--target", home, wheel],
        check=True,
        capture_output=True,
    )
    env = {"PYTHONPATH": str(home), "NO_COLOR": "1"}
    said = python(
        "import whorl\n"
        "from whorl.lab import write_report\n"
        "for lang in ('en', 'zh'):  # the template and the texts are there too\n"
        "    write_report({'train_length': 64, 'rows': [{'label': 'rope'}]}, f'{lang}.html', lang=lang)\n"
        "print(whorl.__file__)",
        env=env,
        cwd=tmp_path,
    )
    assert said.startswith(str(home))
    script = next(home.glob("bin/whorl*"))
    done = subprocess.run([script, "list"], capture_output=True, text=True, env={**os.environ, **env}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [name for name in whorl.names() if f"\n{name} " not in f"\n{done.stdout}"] == []


def check_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = f"whorl-{whorl.__version__}.dist-info"
        metadata = email.message_from_string(archive.read(f"{info}/METADATA").decode())
        scripts = archive.read(f"{info}/entry_points.txt").decode()
    assert {name.partition("/")[0] for name in names} == {"whorl", info}
    assert "whorl/py.typed" in names and "whorl/benchmarks/tables.py" in names
    written = {f"whorl/{path.relative_to(SOURCE).as_posix()}" for path in SOURCE.rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == written
    data = {path.name for path in (SOURCE / "lab" / "report").iterdir() if path.is_file() and path.suffix != ".py"}
    assert data > {"report.html", "style.css", "en.toml", "zh.toml"}
    assert {f"whorl/lab/report/{name}" for name in data} <= names

    assert metadata["Name"] == "whorl" and metadata["Version"] == whorl.__version__
    assert metadata["Requires-Python"] == ">=3.11" and metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra") or []) == EXTRAS
    needed = [line for line in metadata.get_all("Requires-Dist") or [] if "extra ==" not in line]
    assert {re.split(r"[^\w-]", line)[0] for line in needed} == {"torch", "numpy"}
    assert re.search(r"\[console_scripts\]\s*whorl = whorl\.cli:main\b", scripts)
