"""`omlx-server` whose stress test is small enough for a tiny model and a busy machine."""

from omlx_server.cli import app
from omlx_server.cli.look import stress
from omlx_server.cli.look.stress_load import StressPlan

PLAN = StressPlan(hot_bytes=1 << 16, most_tokens=256, prompts=12, most_taken=32 << 20)

if __name__ == "__main__":
    stress.PLAN = PLAN
    app.main()
