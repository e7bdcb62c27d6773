"""`omlx-server bench`: how fast a running server is. Knows HTTP and times only, no MLX.

plan      what is measured, and how long it may take
words     prompts that no cache has seen, of about a length
pieces    the bytes of a stream as events with their times, pure
stream    when the tokens of an answer came, and rates of several, pure
target    the server that is asked
budget    how much of a measurement the time allows
measure   the rounds
result    what was found: medians and spreads; as JSON and back
table     the same for people; compare adds ratios to an earlier run; plot draws it
command   the command line
"""
