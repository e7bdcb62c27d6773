// What a name would be, and fetching it.
import { get, request } from "../api/client.js";
import { events } from "../api/sse.js";
import { bytes, number, plain, share } from "../parts/format.js";
import { html, useEffect, useRef, useState } from "../parts/ui.js";

const TYPING_MS = 300;
const TENSORS = 100_000;
const KINDS = {
  directory: "A directory with a model.",
  hub: "A name of the hub; it is not on this machine yet.",
  catalogue: "In the catalogue; it is not on this machine yet.",
  unknown: "No model of this name is known.",
};

export function Pull({ pulled }) {
  const [name, set] = useState("");
  const { progress, problem, count, start, cancel } = usePull(pulled);
  const found = useResolved(name.trim(), count);
  const submit = (event) => {
    event.preventDefault();
    if (name.trim()) start(name.trim());
  };
  return html`<section class="card" aria-label="Pull a model">
    <form class="pull" onSubmit=${submit}>
      <label>
        Model
        <input type="text" class="mono"
          placeholder="org/name of a hub, its address, a short name or an alias"
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

/** What the server says about a name, a moment after the last key, and after each of `pulls`. */
function useResolved(name, pulls) {
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
  }, [name, pulls]);
  return found;
}

function usePull(pulled) {
  const [progress, tell] = useState(null);
  const [problem, fail] = useState("");
  const [count, pulledOne] = useState(0);
  const stopping = useRef(null);
  const start = async (model) => {
    stopping.current = new AbortController();
    const { signal } = stopping.current;
    fail("");
    tell({ stage: "look", done: 0, total: 0 });
    try {
      const options = { method: "POST", body: { model }, signal };
      for await (const { data } of events(await request("admin/models/pull", options))) {
        const told = JSON.parse(data);
        if (told.error) throw new Error(told.error.message);
        if (told.type === "progress") tell(told);
      }
      pulledOne(count + 1);
      pulled();
    } catch (error) {
      if (error.name !== "AbortError") fail(error.message);
    }
    tell(null);
  };
  return { progress, problem, count, start, cancel: () => stopping.current?.abort() };
}

function Bar({ progress: { stage, done, total } }) {
  const known = total > 0;
  // Small totals are of tensors, not of bytes.
  const count = (value) => (total > TENSORS ? bytes(value) : number(value));
  return html`<div class="progress">
    <progress aria-label="Pull" ...${known ? { max: total, value: done } : {}}></progress>
    <p class="hint">
      ${plain(stage)}${known && `: ${count(done)} of ${count(total)} (${share(done, total)})`}
    </p>
  </div>`;
}

function Resolved({ found }) {
  const alias = found.alias_of && html`An alias of <bdi>${plain(found.alias_of)}</bdi>. `;
  const near = found.suggestions.map(plain).join(", ");
  return html`<p class="hint">${alias}${found.here
      ? html`It is here, in <bdi class="mono">${plain(found.path)}</bdi>.`
      : KINDS[found.kind]}${near && ` Near it: ${near}.`}</p>
    ${found.problem && html`<p class="problem">${plain(found.problem)}</p>`}`;
}
