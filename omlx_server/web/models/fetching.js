// Models on their way, whichever view is shown. Where a fetch stops, the server goes on from what
// has come when it is asked again.
import { request } from "../api/client.js";
import { events } from "../api/sse.js";
import { bytes, number, plain, share } from "../parts/format.js";
import { Signal, useSignal } from "../parts/signal.js";
import { html } from "../parts/ui.js";

const TENSORS = 100_000;
const LOOKING = { stage: "look", done: 0, total: 0 };
const stopping = new Map();

/** What is on its way, by name: its `progress`, whether it `runs`, and the `problem` it met. */
export const fetches = new Signal({});
/** How many models have come. */
export const arrived = new Signal(0);

export async function start(name) {
  if (stopping.has(name)) return;
  const controller = new AbortController();
  stopping.set(name, controller);
  note(name, { progress: fetches.value[name]?.progress ?? LOOKING, runs: true, problem: "" });
  try {
    await follow(name, controller.signal);
    forget(name);
    arrived.set(arrived.value + 1);
  } catch (error) {
    const problem = error.name === "AbortError" ? "" : error.message;
    if (fetches.value[name]) note(name, { ...fetches.value[name], runs: false, problem });
  } finally {
    stopping.delete(name);
  }
}

async function follow(name, signal) {
  const options = { method: "POST", body: { model: name }, signal };
  for await (const { data } of events(await request("admin/models/pull", options))) {
    const told = JSON.parse(data);
    if (told.error) throw new Error(told.error.message);
    if (told.type === "done") return;
    note(name, { progress: told, runs: true, problem: "" });
  }
  throw new Error("The server has ended it.");
}

function note(name, fetch) {
  fetches.set({ ...fetches.value, [name]: fetch });
}

function forget(name) {
  const { [name]: _, ...others } = fetches.value;
  fetches.set(others);
}

export function Fetches() {
  const names = Object.entries(useSignal(fetches));
  if (!names.length) return null;
  return html`<ul class="fetches" aria-label="Downloads">
    ${names.map(([name, fetch]) => html`<${Fetch} key=${name} name=${name} ...${fetch} />`)}
  </ul>`;
}

function Fetch({ name, progress, runs, problem }) {
  const label = (words) => `${words} ${name}`;
  const resume = problem ? "Try again" : "Resume";
  return html`<li class="fetch">
    <p><bdi>${plain(name)}</bdi>${!runs && !problem && html` <span class="badge">paused</span>`}</p>
    ${(runs || progress.total > 0) && html`<${Bar} name=${name} progress=${progress} />`}
    <div class="row">
      ${runs
        ? html`<button key="pause" aria-label=${label("Pause")}
            onClick=${() => stopping.get(name)?.abort()}>Pause</button>`
        : html`<button key="resume" aria-label=${label(resume)}
              onClick=${() => start(name)}>${resume}</button>
            <button key="dismiss" class="quiet" aria-label=${label("Dismiss")}
              onClick=${() => forget(name)}>Dismiss</button>`}
    </div>
    ${problem && html`<p class="problem" role="alert">${plain(problem)}</p>`}
  </li>`;
}

function Bar({ name, progress: { stage, done, total } }) {
  // Small totals are of tensors, not of bytes.
  const count = (value) => (total > TENSORS ? bytes(value) : number(value));
  return html`<div class="progress">
    <progress aria-label=${`Download of ${plain(name)}`}
      ...${total > 0 ? { max: total, value: done } : {}}></progress>
    <p class="hint">
      ${stage === "look" ? "asking the hub" : plain(stage)}${total > 0 &&
      `: ${count(done)} of ${count(total)} (${share(done, total)})`}
    </p>
  </div>`;
}
