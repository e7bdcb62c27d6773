// What an answer waits for, and how long its model has thought, as the server tells it.
import { get } from "../api/client.js";
import { number, plain, plural, seconds } from "../parts/format.js";
import { LoadBar, loadInWords } from "../parts/load.js";
import { html, useEffect, useState } from "../parts/ui.js";

const FIRST_MS = 300;
const EVERY_MS = 1000;

/** What /progress tells of an answer while it `waits`; null until it does. */
export function useProgress(answer, waits) {
  const [progress, set] = useState(null);
  useEffect(() => {
    if (!waits) return undefined;
    const leaving = new AbortController();
    const { signal } = leaving;
    let timer = 0;
    const ask = async () => {
      try {
        if (!document.hidden) set(await get(`progress/${answer.id}`, { signal }));
      } catch {
        // The answer itself tells what is wrong.
      }
      if (!signal.aborted) timer = setTimeout(ask, EVERY_MS);
    };
    timer = setTimeout(ask, FIRST_MS);
    return () => {
      leaving.abort();
      clearTimeout(timer);
    };
  }, [answer, waits]);
  return progress;
}

export function Waiting({ progress }) {
  const request = progress?.request;
  const reads = request?.place === "prefilling";
  return html`<div class="waiting">
    <p><span class="pulse"></span>${inWords(request, progress?.before)}</p>
    ${reads && html`<progress max=${request.prompt_tokens} value=${request.computed_tokens}
      aria-label="Tokens of the prompt that are read" />`}
    <${LoadBar} load=${request?.load} name=${request?.model} />
  </div>`;
}

function inWords(request, before) {
  const { place, waits_for: cause } = request ?? {};
  if (cause === "its model") {
    const read = request.load?.total ? `: ${loadInWords(request.load)}` : "";
    return `Loading ${plain(request.model)}${read}, ${number(Math.ceil(request.seconds))} s`;
  }
  if (place === "queued") {
    const behind = before ? `In the queue behind ${plural(before, "request")}` : "In the queue";
    return cause ? `${behind}, waiting for ${cause.replace("rows", "a free place")}` : behind;
  }
  if (place === "restoring") return "Loading what the cache has of the prompt from the disk";
  if (place === "paused") return "Paused, as others need the memory";
  if (place !== "prefilling") return "Waiting for the first token";
  const { computed_tokens: read, prompt_tokens: all, tokens_per_second: pace } = request;
  const rate = pace ? `, ${number(Math.round(pace))} tok/s` : "";
  return `Reading the prompt: ${number(read)} of ${number(all)} tokens${rate}`;
}

/** What is said above thoughts: how long they took and how many tokens, or take until now. */
export function thoughtsInWords({ usage }, thinking, times, progress) {
  const since = thinking && times.thought ? (performance.now() - times.thought) / 1000 : null;
  const duration = thinking ? since : usage?.thoughtSeconds;
  const count = thinking ? progress?.request?.output_tokens : usage?.thought;
  const time = duration ? seconds(duration) : "";
  const tokens = count ? plural(count, "token") : "";
  return [thinking ? "Thinking" : "Thoughts", time, tokens].filter(Boolean).join(" · ");
}
