"""Nothing in the package runs code that comes from elsewhere: beside what test_architecture.py says
of eval and pickle, no shell, no import by a name that data gives, no pickle inside arrays, no
template outside the sandbox."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "omlx_server"
SHELLS = ("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput")
LOADERS = ("torch.load", "joblib.load", "yaml.load", "yaml.unsafe_load", "runpy.run_path")
BARE_TEMPLATES = ("jinja2.Environment", "jinja2.Template", "jinja2.NativeEnvironment")
FORBIDDEN = (*SHELLS, *LOADERS, *BARE_TEMPLATES, "__import__", "builtins.eval", "builtins.exec")
# They load parts of this package that need an extra, by names that stand in the code.
IMPORTERS = ("store/mediums/remote.py", "process/tracing.py")
# One becomes the client that its user has named, the others start themselves again.
PROGRAMS = ("cli/launch/launch.py", "process/cluster/leader.py", "process/degraded.py")


def called(path: Path) -> list[tuple[str, ast.Call]]:
    """Dotted names of what a file calls, through `from` imports too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    whole = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    names = [ast.unparse(node.func) for node in calls]
    return [(whole.get(name, name), node) for name, node in zip(names, calls, strict=True)]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.name)
def test_a_file_runs_no_code_from_data(path: Path) -> None:
    for name, node in called(path):
        place = f"{path}:{node.lineno} {name}"
        assert name not in FORBIDDEN, place
        file = path.relative_to(PACKAGE).as_posix()
        if name.startswith(("os.exec", "os.spawn", "os.posix_spawn")):
            assert file in PROGRAMS, place
        if name.endswith("import_module"):
            assert file in IMPORTERS, place
        for keyword in node.keywords:
            if keyword.arg == "allow_pickle":
                assert isinstance(keyword.value, ast.Constant) and keyword.value.value is False
