"""Custom tools and what their calls must match, for the tests of all APIs."""

import re

REGEX = r'^[a-c]{2}\n"x\\$'
LARK = """start: line+
line: ("+" | "-") /["\\\\a-c]{1,3}/ LF -> line
%import common.LF
"""
LARK_TEXT = re.compile(r'([+-]["\\a-c]{1,3}\n)+')
"""What LARK matches."""
PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
"""As Codex sends it for its tool apply_patch."""
RECURSIVE = 'start: "(" start ")" | LF\n%import common.LF\n'
"""It can't be enforced within JSON."""
