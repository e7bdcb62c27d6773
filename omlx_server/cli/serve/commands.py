"""The options and help texts of `up`, `serve` and `rank`."""

from typing import Annotated

import typer

from omlx_server.cli.shell.command import ConfigOption, SetOption, flag, model_argument, option
from omlx_server.cli.shell.complete import complete_models, complete_schemes, complete_servable

UpModel = Annotated[
    str,
    model_argument(
        "As for `serve`. Without it: models.default of the config, else the newest model that "
        "is here and fits into memory; it asks which if only other programs have some. If none is "
        "here, it offers the best usual model that fits; the starter (93 MB) where nobody can "
        "answer, nothing fits or there is no network.",
        complete=complete_servable,
    ),
]
ServeModel = Annotated[
    str,
    model_argument(
        "A directory, a name of `omlx-server list`, a short name (starter, qwen3-4b: `omlx-server "
        "search` lists them), or org/name on Hugging Face, or its address. Without it: "
        "models.default of the config, else starter.",
        complete=complete_servable,
    ),
]
OnceOption = Annotated[bool, flag("Ask it two questions, show the speed, and end.", "--once")]
DemoOption = Annotated[
    bool, flag("Ask it two questions, show the speed, and go on serving.", "--demo")
]
NoBrowserOption = Annotated[bool, flag("Open no browser with the server's page.", "--no-browser")]
HostOption = Annotated[str | None, option("HOST", "Where to listen [default: 127.0.0.1].")]
PortOption = Annotated[str | None, option("PORT", "0 takes any free port [default: 8000].")]
EmbeddingOption = Annotated[
    str | None,
    option(
        "NAME", "Also serve embeddings, for example of all-MiniLM-L6-v2.", complete=complete_models
    ),
]
RerankerOption = Annotated[
    str | None, option("NAME", "Also rank documents with this model.", complete=complete_models)
]
KvSchemeOption = Annotated[
    str | None,
    option(
        "SCHEME",
        "Keep keys and values in few bits: affine, rotated or turboquant. A token takes 2 to 3 "
        "times the kernels of none; turboquant was not timed on a GPU yet [default: none].",
        complete=complete_schemes,
    ),
]
KvBitsOption = Annotated[str | None, option("BITS", "How few, 2 to 8 [default: 4].")]
KvGroupOption = Annotated[
    str | None, option("N", "Numbers that share a scale: 32, 64 or 128 [default: 64].")
]
DraftModelOption = Annotated[
    str | None,
    option(
        "NAME",
        "A small model of the same family drafts tokens, for the same answers in less time.",
        complete=complete_models,
    ),
]
AdapterOption = Annotated[
    str | None,
    option("NAME", "A LoRA adapter of the model, or its directory, for requests that name none."),
]
HostsOption = Annotated[
    str | None,
    option("FILE", "Compute the model on these machines together: a hosts file of mlx.launch."),
]
DryRunOption = Annotated[
    bool, flag("Show how --hosts would start its machines; start nothing.", "--dry-run")
]
LeaderOption = Annotated[str, option("HOST:PORT", "Where rank 0 awaits the other ranks.")]
InsteadOption = Annotated[
    str, option("NAME", "Set by rank 0: a process that has this name is killed.")
]
RankArgument = Annotated[int, typer.Argument(min=1, help="Which rank this is, from 1 on.")]
FallbackOption = Annotated[
    list[str] | None,
    typer.Option("--fallback", hidden=True, help="As --set, where nothing else sets the key."),
]


def _watch_stdin(is_wanted: bool) -> bool:
    from omlx_server.cli.shell.ending import end_with_stdin

    if is_wanted:
        end_with_stdin()
    return is_wanted


UntilStdinEndsOption = Annotated[
    bool,
    typer.Option(
        "--until-stdin-ends", hidden=True, callback=_watch_stdin, help="End when the parent does."
    ),
]
DegradedOption = Annotated[
    bool,
    flag(
        "While the config is wrong, answer 503 with the reason; for services.",
        "--degraded-on-error",
    ),
]


def up(
    model: UpModel = "",
    once: OnceOption = False,
    demo: DemoOption = False,
    no_browser: NoBrowserOption = False,
    port: PortOption = None,
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> int:
    """Get a model, serve it, and say how to connect. The way to begin.

    \b
    Examples:
      omlx-server up
      omlx-server up --once
      omlx-server up mlx-community/Qwen3-4B-4bit

    \b
    A server that runs already at the configured address is used as it is. Where another program
    has the port, the next free one is taken, where `chat`, `status` and others find it. On a
    terminal of a desktop its page is opened. Serves until Ctrl-C. With --once
    the exit code says whether the answers came.
    """
    from omlx_server.cli.serve.up import UpOptions, run

    options = UpOptions(
        model, once=once, demo=demo, config=config_file, sets=sets or [], browser=not no_browser
    )
    return run(options, port=port)


def serve(
    model: ServeModel = "",
    host: HostOption = None,
    port: PortOption = None,
    embedding_model: EmbeddingOption = None,
    reranker: RerankerOption = None,
    kv_scheme: KvSchemeOption = None,
    kv_bits: KvBitsOption = None,
    kv_group_size: KvGroupOption = None,
    draft_model: DraftModelOption = None,
    adapter: AdapterOption = None,
    hosts: HostsOption = None,
    config_file: ConfigOption = None,
    sets: SetOption = None,
    fallbacks: FallbackOption = None,
    dry_run: DryRunOption = False,
    degraded: DegradedOption = False,
    until_stdin_ends: UntilStdinEndsOption = False,
) -> int:
    """Serve a model over the OpenAI API until Ctrl-C.

    \b
    Examples:
      omlx-server serve
      omlx-server serve mlx-community/Qwen3-0.6B-4bit --embedding-model all-MiniLM-L6-v2
      omlx-server serve ./my-model --adapter ./my-adapter --set scheduler.max_batch_size=16
      omlx-server serve ./my-model --draft-model ./small --kv-scheme turboquant --kv-bits 3.5
      OMLX_AUTH__API_KEYS=secret omlx-server serve --host 0.0.0.0

    \b
    Any OpenAI client then connects to http://127.0.0.1:8000/v1, and with --host 0.0.0.0 from other
    machines with the key. Ctrl-C or SIGTERM lets running answers finish; a second ends at once.
    """
    from omlx_server.cli.serve.serve import run

    flags = {"server.host": host, "server.port": port, "models.embedding": embedding_model}
    flags |= {"models.reranker": reranker, "kv_cache.scheme": kv_scheme, "kv_cache.bits": kv_bits}
    flags |= {"kv_cache.group_size": kv_group_size, "adapters.default": adapter}
    flags |= {"speculation.draft_model": draft_model, "cluster.hosts": hosts}
    return run(model, flags, config_file, sets, fallbacks, degraded=degraded, dry_run=dry_run)


def rank(
    number: RankArgument,
    leader: LeaderOption,
    instead_of: InsteadOption = "",
    config_file: ConfigOption = None,
    sets: SetOption = None,
) -> int:
    """Compute a part of the model of a server on another machine.

    \b
    Example:
      omlx-server rank 1 --leader 10.0.0.1:7000 < secret

    \b
    `serve --hosts` starts this on its other machines by itself. By hand it is started where
    cluster.secret and cluster.port are set on the machine of rank 0. The secret is read from the
    standard input. It ends when rank 0 does.
    """
    from omlx_server.cli.serve.rank import run

    return run(number, leader, instead_of, config_file, sets or [])
