"""scripts/bench: our server, the bare batch loop and other servers, measured in one run.

plan          what is measured, and with which sizes
workload      what is asked of a system, and what a system is
prompts       prompts of an exact length in tokens
answer        one answer of a server, and what it had to compute for it, pure
cache_session what is asked of a server that keeps prompts
tiny          a one-layer model, to see what is not the model
timeline      when the tokens of a run came; rates and gaps, pure
metrics       samples of many rounds; medians and ratios, pure
quantities    which metrics follow from which runs, and what is required; cache_quantities too
environment   the environment variables of a child
process       a child process: its log, its memory, its end
http_system   a server as a system; traffic sends its requests, response reads the answers
peers         the servers beside ours; peer_servers starts them, peer_pins has their versions
peer_environment  makes the environment of a peer; peer_build compiles its program, where there is
              none to be had; peer_command runs what that needs; peer_weights fetches a model's file
bare_system   the bare batch loop as a system; bare_worker is its process
measure       the rounds: every workload on every system, interleaved
report        the result of a run, and its JSON; table, plot and markdown show it
progress      what is being done, for whoever waits

scripts/bench kv: what quantised caches cost and save, beside plain ones.

kv_plan       what is measured, and with which sizes
kv_variants   schemes and bits, and one model with fresh caches of each
kv_models     random models that are mostly keys and values
kv_format     bytes per token by the definition of each format, pure
kv_quality    perplexity, KL and agreement over a text
kv_bytes      bytes per token of each layer
kv_capacity   tokens that a full hot tier holds
kv_memory     peaks over a prefill and a rebuild
kv_speed      decode and prefill, by turns
kv_worker     the process of one measurement; kv_measure starts it
kv_quantities which metrics follow; kv_bounds what is required of them
kv_report     the result as JSON, tables and Markdown; kv_command is the command line
"""
