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

Each other command has a file NAME_command.py; comparison.py reports what compares sides.
"""
