"""The rings of the design, enforced: who may import whom, and where mlx may appear.

core -> stdlib; store, compute, text -> core; engine -> core, store, compute;
api -> text, the engine's client and archives, core, models, images;
cli -> settings, wiring, process, models, service, doctor, core, store, text, images;
doctor -> settings, core, compute, engine, text, models, wiring;
images -> nothing of ours; wiring -> all but cli, process and doctor;
process -> all but cli and doctor.

The command line may import inside a function: what a command needs is loaded when it runs. So may
the files that need packages which are extras. Nothing is imported by a string.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "omlx_server"
ROOT = PACKAGE.parent

INNER = (
    "clock",
    "core",
    "store",
    "compute",
    "engine",
    "text",
    "models",
    "images",
    "api",
    "service",
    "settings",
)
# Ring -> what of omlx_server it may import besides itself. `errors` and the version are free.
ALLOWED: dict[str, tuple[str, ...]] = {
    "core": (),
    "store": ("core",),
    "compute": ("clock", "core"),
    "engine": ("clock", "core", "store", "compute"),
    "text": ("core",),
    "models": ("core",),
    "images": (),
    "api": (
        "clock",
        "text",
        "core",
        "models",
        "images",
        "engine.client.archives",
        "engine.pool.entry",
        "engine.client.generation",
        "engine.messages",
        "engine.client.model_client",
        "engine.pool.pool",
        "engine.client.encoders",
    ),
    "cli": (
        "settings",
        "wiring",
        "process",
        "models",
        "service",
        "doctor",
        "core",
        "store",
        "text",
        "images",
    ),
    "service": ("core", "settings"),
    "doctor": ("settings", "core", "compute", "engine", "text", "models", "wiring"),
    "settings": ("core",),
    "clock": (),
    "errors": (),
    "wiring": INNER,
    "process": (*INNER, "wiring"),
    "__main__": ("cli",),
    "__init__": (),
}
FREE = ("errors", "__version__")
FLAT = 16
MLX = ("mlx", "mlx_lm")
CODED_TEMPLATES = PACKAGE / "text" / "coded_templates.py"
PILLOW = PACKAGE / "images" / "pillow.py"
HEAVY_FOR_CLI = ("mlx", "mlx_lm", "transformers", "fastapi", "uvicorn", "starlette", "numpy")
# `pull` unpacks the starter model, whose weights are arrays.
HEAVY_ALL_THE_SAME = {"cli/models/pull.py": ("numpy",)}
DEFERS = "cli"
# They need packages that are extras, so what imports these is imported when it is asked for.
EXTRAS = {
    "store/mediums/remote.py": ("store.mediums.redis.Redis", "store.mediums.objects.Objects"),
    "process/tracing.py": ("api.metrics.otel.make_tracer",),
    "images/decode.py": ("images.pillow",),
    "images/resize.py": ("images.pillow",),
}
BY_STRING = ("import_module", "__import__", "resolve_name", "run_module", "run_path")
MACHINERY = ("importlib.util.", "importlib.machinery.", "runpy.")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def ring_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """Absolute dotted names of everything that a file imports, at once or inside a function."""
    return names_in(ast.walk(tree_of(path)))


def names_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative import of {node.module} hides the ring"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def imports_at_once(path: Path) -> tuple[str, ...]:
    """What is imported when the file is, and not only when one of its functions runs."""
    return tuple(names_in(outside_functions(tree_of(path))))


def outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, FUNCTIONS):
            yield child
            yield from outside_functions(child)


def deferred_imports(path: Path) -> list[str]:
    functions = [node for node in ast.walk(tree_of(path)) if isinstance(node, FUNCTIONS)]
    return [name for function in functions for name in names_in(ast.walk(function))]


def loaded_with(path: Path) -> dict[str, Path]:
    """All that is imported when the file is, through any number of our files, and by which."""
    found: dict[str, Path] = {}
    waiting, seen = [path], {path}
    while waiting:
        file = waiting.pop()
        for name in imports_at_once(file):
            found.setdefault(name, file)
            new = [below for below in files_of(name) if below not in seen]
            waiting += new
            seen.update(new)
    return found


def heads_loaded_with(path: Path) -> dict[str, Path]:
    return {name.partition(".")[0]: file for name, file in loaded_with(path).items()}


def files_of(name: str) -> Iterator[Path]:
    """Our files that Python runs to import the name: a module, and the packages around it."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        place = ROOT.joinpath(*parts[:count])
        candidates = (place.with_suffix(".py"), place / "__init__.py")
        yield from (file for file in candidates if own(name) is not None and file.exists())


def own(name: str) -> str | None:
    head, _, rest = name.partition(".")
    return rest if head == "omlx_server" else None


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_file_imports_only_what_its_ring_may(path: Path) -> None:
    ring = ring_of(path)
    allowed = (ring, *ALLOWED[ring], *FREE)
    for name in imports(path):
        rest = own(name)
        if rest is not None:
            assert any(rest == a or rest.startswith(f"{a}.") for a in allowed), (
                f"{ring} must not import {name}"
            )


def arrows() -> dict[str, set[str]]:
    """File -> files of ours that it imports, at any place in it."""
    found: dict[str, set[str]] = {}
    for path in sources():
        reached = (tuple(files_of(name)) for name in imports(path))
        found[str(path)] = {str(files[-1]) for files in reached if files} - {str(path)}
    return found


def circles(graph: dict[str, set[str]]) -> set[str]:
    """What is left when whoever imports nothing that is left has gone, again and again: the circles
    and what imports them."""
    left = {name: set(to) for name, to in graph.items()}
    while gone := {name for name, to in left.items() if not to & left.keys()}:
        left = {name: to for name, to in left.items() if name not in gone}
    return set(left)


def test_there_are_no_import_circles() -> None:
    assert not circles(arrows())


def test_arrows_between_folders_point_one_way() -> None:
    """A file that lies beside folders counts by itself."""
    graph = arrows()
    parents = {Path(name).parent.parent for name in graph}

    def place(name: str) -> str:
        folder = Path(name).parent
        return name if folder in parents else str(folder)

    folders: dict[str, set[str]] = {place(name): set() for name in graph}
    for name, to in graph.items():
        folders[place(name)] |= {place(t) for t in to} - {place(name)}
    assert not circles(folders)


@pytest.mark.parametrize(
    ("graph", "left"),
    [
        ({"a": {"b"}, "b": set()}, set()),
        ({"a": {"b"}, "b": {"a"}, "c": {"a"}, "d": set()}, {"a", "b", "c"}),
    ],
)
def test_a_circle_is_found(graph: dict[str, set[str]], left: set[str]) -> None:
    assert circles(graph) == left


def test_several_machines_are_behind_one_door() -> None:
    """The rest of the server knows `core/ranks.py`, where one process has nobody to tell."""
    inside = {path for path in sources() if "cluster" in path.parent.parts}
    to_it = {name for name, to in arrows().items() if to & set(map(str, inside))}
    assert to_it - set(map(str, inside)) == {
        str(PACKAGE / name)
        for name in (
            "cli/look/doctor.py",
            "cli/serve/dry_run.py",
            "cli/serve/rank.py",
            "process/server.py",
            "wiring/context.py",
            "wiring/model_factory.py",
        )
    }


def test_no_folder_is_a_hall() -> None:
    """At most about fifteen files lie flat in a folder."""
    flat = Counter(path.parent for path in sources() if path.name != "__init__.py")
    halls = {str(folder.relative_to(PACKAGE)): n for folder, n in flat.items() if n > FLAT}
    assert not halls


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_mlx_appears_in_compute_only(path: Path) -> None:
    if ring_of(path) == "compute":
        return
    found = [name for name in imports(path) if name.split(".")[0] in MLX]
    if path == CODED_TEMPLATES:  # pure functions on text, which happen to live there
        found = [name for name in found if not name.startswith("mlx_lm.chat_templates")]
    assert not found


def test_pillow_appears_in_one_file_only() -> None:
    """It is an extra, so nothing imports that file at once."""
    assert [path for path in sources() if "PIL" in heads(imports(path))] == [PILLOW]
    at_once = [path for path in sources() if PILLOW in files_at_once(path)]
    assert not at_once


def files_at_once(path: Path) -> set[Path]:
    return {file for name in imports_at_once(path) for file in files_of(name)}


def test_images_need_numpy_beside_the_standard_library_only() -> None:
    for path in (PACKAGE / "images").rglob("*.py"):
        free = {"omlx_server", "numpy", *(("PIL",) if path == PILLOW else ())}
        assert heads(imports(path)) <= free | sys.stdlib_module_names, path


def heads(names: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def test_core_needs_the_standard_library_only() -> None:
    for path in (PACKAGE / "core").rglob("*.py"):
        for name in imports(path):
            head = name.split(".")[0]
            assert head in sys.stdlib_module_names or head == "omlx_server", f"{path}: {name}"


def test_the_command_line_imports_nothing_heavy() -> None:
    rings = ("cli", "settings", "service")
    for path in (path for ring in rings for path in (PACKAGE / ring).rglob("*.py")):
        needed = HEAVY_ALL_THE_SAME.get(path.relative_to(PACKAGE).as_posix(), ())
        for head, file in heads_loaded_with(path).items():
            assert head not in HEAVY_FOR_CLI or head in needed, f"{path} loads {head} by {file}"


def test_what_a_file_loads_is_followed_through_our_files() -> None:
    command = PACKAGE / "cli" / "serve" / "serve.py"
    assert "omlx_server.process.server" in {n.rpartition(".")[0] for n in deferred_imports(command)}
    assert heads_loaded_with(PACKAGE / "process" / "server.py").keys() >= set(HEAVY_FOR_CLI)


def test_nothing_is_imported_inside_a_function() -> None:
    """Save by the command line, and there not what its file has loaded anyway; and what needs an
    extra."""
    for path in sources():
        extras = EXTRAS.get(path.relative_to(PACKAGE).as_posix(), ())
        inner = [name for name in deferred_imports(path) if own(name) not in extras]
        if ring_of(path) == DEFERS:
            inner = [name for name in inner if name in loaded_with(path)]
        assert not inner, f"{path}: {inner}"


def test_nothing_is_imported_by_a_string() -> None:
    """Types and the rings would not see it."""
    for path in sources():
        assert not imports_by_string(tree_of(path)), path


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('importlib.import_module("json")', True),
        ("from importlib import import_module", True),
        ("import importlib.util", True),
        ('module = __import__("json")', True),
        ('pkgutil.resolve_name("json:loads")', True),
        ("from importlib import metadata", False),
        ("from importlib.metadata import version", False),
        ("import json", False),
    ],
)
def test_an_import_by_a_string_is_found(source: str, found: bool) -> None:
    assert bool(imports_by_string(ast.parse(source))) == found


def imports_by_string(tree: ast.Module) -> list[str]:
    """Names of code that could import by a string, called or handed on."""
    nodes = list(ast.walk(tree))
    found = [node.attr for node in nodes if isinstance(node, ast.Attribute)]
    found += [node.id for node in nodes if isinstance(node, ast.Name)]
    found += [name.rpartition(".")[2] for name in names_in(nodes)]
    modules = [name for name in names_in(nodes) if f"{name}.".startswith(MACHINERY)]
    return modules + [name for name in found if name in BY_STRING]


def test_broad_excepts_stand_in_the_guard_only() -> None:
    """The HTTP edge is a registered handler, so the guard is the one place that keeps whatever was
    raised, by a call or by what is awaited. What cleans up and raises it again may see anything
    pass."""
    found = []
    for path in sources():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ExceptHandler) and _is_broad(node) and not _passes_on(node):
                found.append(str(path.relative_to(PACKAGE)))
    assert found == ["core/crash.py"] * 2


@pytest.mark.parametrize(
    ("handler", "passes"),
    [
        ("except BaseException: clean(); raise", True),
        ("except BaseException:\n if a: raise B from None\n raise", True),
        ("except BaseException: clean()", False),
        ("except BaseException:\n if a: return\n raise", False),
        ("except BaseException:\n if a: raise", False),
        ("except Exception: raise", False),
        ("except: raise", False),
    ],
)
def test_what_cleans_up_is_told_from_what_keeps_an_error(handler: str, passes: bool) -> None:
    body = f"def f():\n for x in y:\n  try: pass\n  {handler}".replace("\n if", "\n   if")
    tree = ast.parse(body.replace("\n raise", "\n   raise"))
    found = next(node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))
    assert _is_broad(found)
    assert _passes_on(found) == passes


def test_no_code_from_data() -> None:
    """No pickle, eval, exec, remote code or shell anywhere in the package."""
    for path in sources():
        tree = tree_of(path)
        for name in imports(path):
            assert name.split(".")[0] not in ("pickle", "marshal", "shelve", "dill"), path
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile"), f"{path}:{node.lineno}"
            if isinstance(node, ast.keyword) and node.arg in ("trust_remote_code", "shell"):
                value = node.value
                assert isinstance(value, ast.Constant) and value.value is False, path


MOST_LINES_OF_A_FILE, MOST_LINES_OF_A_FUNCTION = 400, 40


def test_functions_and_files_stay_small() -> None:
    for path in sources():
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= MOST_LINES_OF_A_FILE, f"{path} has grown too long"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                assert lines <= MOST_LINES_OF_A_FUNCTION, f"{path}:{node.lineno} {node.name}"


def test_no_test_imports_from_another() -> None:
    """What several need lives in a module of its own beside them."""
    tests = ROOT / "tests"
    for path in tests.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
                module = [part for part in parts if part.startswith("test_")]
                inside = (node.module or "").startswith("tests")
                assert not (inside and module), f"{path}:{node.lineno} imports {module[0]}"


@pytest.mark.parametrize(
    ("file", "least"),
    [
        ("ARCHITECTURE.md", 20),
        ("CONTRIBUTING.md", 2),
        ("docs/internals/walk.md", 20),
        ("docs/internals/where.md", 60),
    ],
)
def test_every_path_in_a_page_about_the_code_exists(file: str, least: int) -> None:
    page = (ROOT / file).read_text(encoding="utf-8")
    named = [part for part in page.split("`")[1::2] if "/" in part and part.endswith((".py", "/"))]
    assert len(named) > least
    for name in named:
        places = (ROOT / name, PACKAGE / name)
        assert any(place.exists() for place in places), f"{file} names {name}"


def test_a_sampling_parameter_stands_where_the_guide_says() -> None:
    """A warm-up of the runner apart, which draws a token in as many ways as there are."""
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = guide.partition("## A sampling parameter")[2].partition("\n## ")[0]
    listed = {ROOT / part for part in section.split("`")[1::2] if part.endswith(".py")}
    for parameter in ("min_p", "repetition_penalty"):
        named = {path for path in sources() if parameter in words_of(path)}
        assert named - {PACKAGE / "compute" / "runner.py"} <= listed


def words_of(path: Path) -> set[str]:
    """The names and short texts of a file's code."""
    nodes = list(ast.walk(tree_of(path)))
    found = {node.id for node in nodes if isinstance(node, ast.Name)}
    found |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    found |= {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}
    return found | {str(node.value) for node in nodes if isinstance(node, ast.Constant)}


def _is_broad(node: ast.ExceptHandler) -> bool:
    return node.type is None or (
        isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
    )


def _passes_on(handler: ast.ExceptHandler) -> bool:
    """Whether it is for all that can be raised, and raises it again, or another one, at any end."""
    names = isinstance(handler.type, ast.Name) and handler.type.id == "BaseException"
    last = handler.body[-1]
    leaves = (ast.Return, ast.Break, ast.Continue)
    return (
        names
        and isinstance(last, ast.Raise)
        and last.exc is None
        and not any(isinstance(node, leaves) for node in ast.walk(handler))
    )
