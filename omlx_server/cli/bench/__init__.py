"""`omlx-server bench`: measures how fast a running server is. It uses HTTP only, no MLX.

plan      what is measured, how long it may take, and how much of it fits into that time
words     prompts of about a given length that no cache has seen
stream    the bytes of a stream as events, when tokens came, and the rate of several streams, pure
target    the server that is measured
measure   the rounds of a measurement
result    the figures: medians and spreads; as JSON and back; ratios to an earlier run
table     a result as text for people; plot draws it
command   the command line
"""
