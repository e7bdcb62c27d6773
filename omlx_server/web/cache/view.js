// What the memory is used for, who is at work, and what the prefix cache holds and gives.
import { memory, problem, state, useLive } from "../api/live.js";
import { bytes, plain } from "../parts/format.js";
import { Problem } from "../parts/problem.js";
import { useSignal } from "../parts/signal.js";
import { html, useState } from "../parts/ui.js";
import { BlockMap } from "./block_map.js";
import { Compare } from "./compare.js";
import { Counters } from "./counters.js";
import { History } from "./history.js";
import { Lanes } from "./lanes.js";
import { Ledger } from "./ledger.js";

export function CacheView() {
  useLive();
  const live = useSignal(state);
  const samples = useSignal(memory);
  const error = useSignal(problem);
  const [chosen, choose] = useState("");
  const caches = live?.cache ?? [];
  const isLoaded = ({ model }) =>
    live.models.some(({ name, state: phase }) => name === model && phase === "loaded");
  const shown = caches.find((one) => one.model === chosen) ?? caches.find(isLoaded) ?? caches[0];
  const model = shown?.model;
  const here = shown && isLoaded(shown);
  const newest = samples.at(-1);
  return html`<div class="view">
    <header class="head"><h1>Memory and cache</h1></header>
    <${Problem} error=${error} />
    <section class="card" aria-labelledby="memory-title">
      <h2 id="memory-title">Memory</h2>
      ${newest ? html`<${Ledger} sample=${newest} />` : html`<p class="hint">No sample yet.</p>`}
      <${History} samples=${samples} />
    </section>
    <section class="card" aria-labelledby="work-title">
      <h2 id="work-title">Requests at work</h2>
      <${Lanes} requests=${live?.requests?.at_work ?? []} />
    </section>
    <section class="card" aria-labelledby="cache-title">
      <header class="split">
        <h2 id="cache-title">Prefix cache</h2>
        ${caches.length > 0 &&
        html`<label class="inline">Model <select value=${model}
          onChange=${(event) => choose(event.target.value)}>
          ${caches.map((one) => html`<option key=${one.model} value=${one.model}>
            ${plain(one.model)}</option>`)}
        </select></label>`}
      </header>
      ${shown
        ? html`<${Counters} counters=${shown.counters} />
            ${here
              ? html`<${BlockMap} key=${model} model=${model}
                  change=${JSON.stringify(shown.counters)} />`
              : html`<p class="empty">It is not loaded now, so it has no blocks in memory.</p>`}`
        : html`<p class="empty">Nothing is cached in memory, as no model is loaded.${" "}
            <a href="#models">Load one</a> or talk with one.</p>`}
      ${live?.cold && html`<p class="hint">${written(live.cold)}</p>`}
    </section>
    ${here && html`<section class="card" aria-labelledby="compare-title">
      <h2 id="compare-title">Where a prompt leaves the cache</h2>
      <${Compare} model=${model} />
    </section>`}
  </div>`;
}

function written({ today_bytes: today, since_start_bytes: all, daily_bytes: most }) {
  const limit = most ? ` of ${bytes(most)}` : "";
  return `Written to the disk: ${bytes(today)}${limit} today, ${bytes(all)} since the start`;
}
