"""A server of the Model Context Protocol over stdin and stdout with one tool, which reads a note:
`python notes_mcp.py note.txt`. Only the standard library, since an agent starts it."""

import json
import sys
from pathlib import Path
from typing import Any

_TOOL = {
    "name": "read_note",
    "description": "Reads the note.",
    "inputSchema": {"type": "object", "properties": {}},
}


def result_of(method: str, params: dict[str, Any], note: Path) -> dict[str, Any] | None:
    """The result of a request; None for a method that is not known."""
    if method == "initialize":
        return {
            "protocolVersion": params.get("protocolVersion", "2025-06-18"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "notes", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [_TOOL]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": note.read_text(encoding="utf-8")}]}
    return {} if method == "ping" else None


def main(note: Path) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        result = result_of(request["method"], request.get("params", {}), note)
        told = {"error": {"code": -32601, "message": "unknown"}} if result is None else {}
        answer = {"jsonrpc": "2.0", "id": request["id"], **told}
        answer |= {"result": result} if result is not None else {}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
