// Versions of a message. Each one has a tail: the message and all that followed it. A conversation
// holds the tail that is shown; its first message holds those before and after it, oldest first.

/** Put `tail` in place of what stands from `index` on, which becomes an earlier version. */
export function addVersion(messages, index, tail) {
  const old = messages.splice(index, Infinity, ...tail);
  if (!old.length) return;
  const { earlier = [], later = [] } = detach(old[0]);
  const kept = says(old) ? [old] : [];
  attach(tail[0], [...earlier, ...kept, ...later], []);
}

/** Show the version before (-1) or after (1) the one of the message at `index`. */
export function turnVersion(messages, index, step) {
  const earlier = [...(messages[index].earlier ?? [])];
  const later = [...(messages[index].later ?? [])];
  const next = step < 0 ? earlier.pop() : later.shift();
  if (!next) return;
  const old = messages.splice(index, Infinity, ...next);
  detach(old[0]);
  if (step < 0) later.unshift(old);
  else earlier.push(old);
  attach(next[0], earlier, later);
}

/** Which version of a message is shown, and of how many. */
export function versionOf({ earlier = [], later = [] }) {
  return { number: earlier.length + 1, count: earlier.length + 1 + later.length };
}

function attach(message, earlier, later) {
  Object.assign(message, { earlier, later });
}

/** Takes the other versions from a message. */
function detach(message) {
  const { earlier, later } = message;
  delete message.earlier;
  delete message.later;
  return { earlier, later };
}

/** Whether a tail holds anything to come back to: an answer that only failed does not. */
function says([message, ...rest]) {
  const { role, content, thoughts, calls } = message;
  return role !== "assistant" || !!content || !!thoughts || !!calls?.length || rest.length > 0;
}
