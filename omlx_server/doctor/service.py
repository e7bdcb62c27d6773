"""The background service."""

from omlx_server.doctor.finding import Finding, ok, warn


def service(state: str, last_exit: int | None) -> Finding:
    """`state` in the words of the service's manager; empty where there is none."""
    if not state:
        return ok("service", "there is no service manager here; `omlx-server serve` needs none")
    if state == "failed":
        code = "" if last_exit is None else f" (exit code {last_exit})"
        return warn("service", f"it has failed{code}", "omlx-server service logs says why")
    return ok("service", state)
