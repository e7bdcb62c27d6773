// Server-sent events of a response. EventSource can't send the headers with the key, nor a body.
import { unreachable } from "./client.js";

/** The events of a response as {event, data}. Comments, which keep a connection alive, are left
 * out. Throws ApiError when the connection is lost. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await lost(reader.read());
      if (done) return;
      const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parse(block);
        if (event) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function lost(reading) {
  try {
    return await reading;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw unreachable();
  }
}

function parse(block) {
  let event = "message";
  const data = [];
  for (const line of block.split("\n")) {
    const [, field, value] = /^(\w+): ?(.*)$/s.exec(line) ?? [];
    if (field === "event") event = value;
    if (field === "data") data.push(value);
  }
  return data.length ? { event, data: data.join("\n") } : null;
}
