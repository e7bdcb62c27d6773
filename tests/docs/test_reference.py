"""What docs/reference/ says is what the program is. `scripts/docs reference` writes it anew."""

import pytest

from omlx_server.settings.sections import KEYS
from scripts.reference import cli, config, markdown, metrics
from scripts.reference.pages import pages
from tests.docs.blocks import ROOT
from tests.docs.conftest import Documented

FOLDER = ROOT / "docs" / "reference"
NAMES = ("cli.md", "config.md", "http.md", "metrics.md")


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_as_the_program_has_it(name: str, documented: Documented) -> None:
    made = pages(documented.told)
    assert sorted(made) == sorted(NAMES)
    assert (FOLDER / name).read_text(encoding="utf-8") == made[name], (
        f"docs/reference/{name} is out of date: run `scripts/docs reference` and commit it"
    )


def test_the_example_is_as_the_program_has_it() -> None:
    assert (ROOT / "config" / "omlx.example.toml").read_text(encoding="utf-8") == config.example()


def test_there_are_no_other_pages() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(NAMES)


def test_pages_are_the_same_everywhere(documented: Documented) -> None:
    for text in pages(documented.told).values():
        assert str(ROOT) not in text
        assert documented.server.url not in text
        assert "\b" not in text


# --- The parts -----------------------------------------------------------------------------------


def test_every_key_has_its_words_bounds_and_default() -> None:
    page = config.page()
    for key in KEYS:
        assert f"### {key}\n" in page
    part = page.partition("### server.port\n")[2].partition("###")[0]
    assert "0 takes any free port" in part
    assert "an integer from 0 to 65535" in part
    assert "| default | `8000` |" in part
    assert "OMLX_SERVER__PORT" in part
    assert "[docs" not in page


def test_every_command_has_its_options_and_examples() -> None:
    page = cli.page()
    part = page.partition("### omlx-server serve\n")[2].partition("###")[0]
    assert "| `--port PORT` |" in part
    assert "```sh\nomlx-server serve\n" in part
    assert "### omlx-server config show\n" in page


def test_labels_and_kinds_of_metrics() -> None:
    text = (
        '# HELP hits_total Hits\n# TYPE hits_total counter\nhits_total{tier="hot"} 1.0\n'
        "# HELP wait Wait\n# TYPE wait histogram\n"
        'wait_bucket{le="1.0"} 1.0\nwait_bucket{le="+Inf"} 1.0\nwait_count 1.0\nwait_sum 1.0\n'
        "# HELP hits_created Hits\n# TYPE hits_created gauge\nhits_created 1.0\n"
    )
    rows = metrics.page(text).splitlines()[-2:]
    assert rows == [
        "| `hits_total` | counter | `tier` | Hits |",
        "| `wait` | histogram |  | Wait |",
    ]


def test_what_means_something_to_markdown_is_escaped() -> None:
    assert markdown.escaped("a <b> `c <d>` [e] *f*") == r"a \<b> `c <d>` \[e] \*f\*"
    assert markdown.table(("a",), [("x | y",)]).endswith(r"| x \| y |")
