"""docs/reference/metrics.md: every name of /metrics with its labels and its words of help."""

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from scripts.reference.markdown import table, whole_page

_ABOUT = """\
What `GET /metrics` tells. Names that vLLM has too begin with `vllm:`, so that its boards work; see
[Observability](../observability.md). A histogram has its name with `_bucket`, `_sum` and `_count`.
Labels of what has not happened yet are not shown here."""
_OF_BUCKETS = "le"
_MADE = "_created"
"""When a counter or histogram began: prometheus-client tells it beside each."""


def page(text: str) -> str:
    """`text` is what the server says."""
    families = text_string_to_metric_families(text)
    rows = (_row(family) for family in families if not family.name.endswith(_MADE))
    return whole_page("Metrics", _ABOUT, [table(("name", "type", "labels", ""), sorted(rows))])


def _row(family: Metric) -> tuple[str, str, str, str]:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return f"`{name}`", family.type, ", ".join(_labels(family)), family.documentation


def _labels(family: Metric) -> Iterator[str]:
    found = {label for sample in family.samples for label in sample.labels} - {_OF_BUCKETS}
    return (f"`{label}`" for label in sorted(found))
