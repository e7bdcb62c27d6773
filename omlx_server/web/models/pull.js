// What a name would be, and fetching it.
import { get, request } from "../api/client.js";
import { events } from "../api/sse.js";
import { bytes, plain, share } from "../parts/format.js";
import { html, useEffect, useRef, useState } from "../parts/ui.js";

const TYPING_MS = 300;

export function Pull({ pulled }) {
  const [name, set] = useState("");
  const found = useResolved(name.trim());
  const { progress, problem, start, cancel } = usePull(pulled);
  const submit = (event) => {
    event.preventDefault();
    if (name.trim()) start(name.trim());
  };
  return html`<section class="card" aria-label="Pull a model">
    <form class="pull" onSubmit=${submit}>
      <label>
        Model
        <input type="text" class="mono" placeholder="org/name of a hub, an alias or a directory"
          spellcheck="false" autocapitalize="off" value=${name}
          onInput=${(event) => set(event.target.value)} />
      </label>
      ${progress
        ? html`<button key="cancel" type="button" onClick=${cancel}>Cancel</button>`
        : html`<button key="pull" class="primary" type="submit"
            disabled=${!name.trim()}>Pull</button>`}
    </form>
    <div class="resolved" aria-live="polite">
      ${progress
        ? html`<${Bar} progress=${progress} />`
        : found && html`<${Resolved} found=${found} />`}
      ${problem && html`<p class="problem">${plain(problem)}</p>`}
    </div>
  </section>`;
}

/** What the server says about a name, a moment after the last key. */
function useResolved(name) {
  const [found, set] = useState(null);
  useEffect(() => {
    set(null);
    if (!name) return undefined;
    const stopping = new AbortController();
    const timer = setTimeout(() => {
      const path = `admin/models/resolve?name=${encodeURIComponent(name)}`;
      get(path, { signal: stopping.signal }).then(set, () => {});
    }, TYPING_MS);
    return () => {
      clearTimeout(timer);
      stopping.abort();
    };
  }, [name]);
  return found;
}

function usePull(pulled) {
  const [progress, tell] = useState(null);
  const [problem, fail] = useState("");
  const stopping = useRef(null);
  const start = async (model) => {
    stopping.current = new AbortController();
    const { signal } = stopping.current;
    fail("");
    tell({ done: 0, total: 0, file: "" });
    try {
      const options = { method: "POST", body: { model }, signal };
      for await (const { data } of events(await request("admin/models/pull", options))) {
        if (data === "[DONE]") break;
        const told = JSON.parse(data);
        if (told.error) throw new Error(told.error.message);
        tell((before) => ({ ...before, ...told }));
      }
      pulled();
    } catch (error) {
      if (error.name !== "AbortError") fail(error.message);
    }
    tell(null);
  };
  return { progress, problem, start, cancel: () => stopping.current?.abort() };
}

function Bar({ progress: { done, total, file } }) {
  const known = total > 0;
  return html`<div class="progress">
    <progress aria-label="Pull" ...${known ? { max: total, value: done } : {}}></progress>
    <p class="hint">
      ${known ? `${bytes(done)} of ${bytes(total)} (${share(done, total)})` : "Looking for it"}
      ${file && html` <bdi class="mono">${plain(file)}</bdi>`}
    </p>
  </div>`;
}

function Resolved({ found }) {
  return html`<p class="hint">${words(found)}</p>
    ${found.suggestions?.length > 0 &&
    html`<p class="hint">Near it: ${found.suggestions.map(plain).join(", ")}</p>`}`;
}

function words(found) {
  const place = found.path ?? found.target ?? found.model ?? "";
  return plain([found.kind ?? found.what, place].filter(Boolean).join(": "));
}
