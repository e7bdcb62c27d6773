// The requests that ended last: counts and times, never their texts.
import { done, problem, useLive } from "../api/live.js";
import { clock, digits, number, plain, seconds } from "../parts/format.js";
import { Problem } from "../parts/problem.js";
import { useSignal } from "../parts/signal.js";
import { html, useState } from "../parts/ui.js";

const KEPT = 200; // by the server

export function LogView() {
  useLive();
  const all = useSignal(done);
  const error = useSignal(problem);
  const [words, search] = useState("");
  const [onlyErrors, choose] = useState(false);
  const shown = all.filter((one) => matches(one, words.toLowerCase(), onlyErrors));
  return html`<div class="view">
    <header class="head">
      <h1>Log</h1>
      <p class="hint">The last ${number(KEPT)} requests, newest first. Their texts are not kept.</p>
    </header>
    <${Problem} error=${error} />
    <div class="filters">
      <label>Search <input type="search" placeholder="model, route, id" value=${words}
        onInput=${(event) => search(event.target.value)} /></label>
      <label class="check"><input type="checkbox" checked=${onlyErrors}
        onChange=${(event) => choose(event.target.checked)} /> Errors only</label>
    </div>
    ${shown.length
      ? html`<${Table} rows=${shown} />`
      : html`<p class="card empty">${all.length
          ? "Nothing here matches."
          : "Nothing yet. What clients ask of this server appears here."}</p>`}
  </div>`;
}

function matches(one, words, onlyErrors) {
  if (onlyErrors && !isError(one)) return false;
  const texts = [one.model, one.route, one.finish_reason, one.error, one.id];
  return !words || texts.some((text) => text?.toLowerCase().includes(words));
}

/** Whether it went wrong. A client that stops its answer has what it wanted. */
function isError(one) {
  return !isStopped(one) && (!!one.error || one.status >= 400);
}

function isStopped({ error }) {
  return error === "client_left";
}

const NUMBERS = [
  ["In", (one) => number(one.prompt_tokens)],
  ["Cached", (one) => number(one.cached_tokens)],
  ["Out", (one) => number(one.completion_tokens)],
  ["First token", (one) => seconds(one.ttft_seconds)],
  ["tok/s", (one) => digits(one.tokens_per_second)],
  ["Took", (one) => seconds(one.seconds)],
];

function Table({ rows }) {
  return html`<div class="card scroll" tabindex="0" role="region" aria-label="Requests">
    <table class="log">
      <thead><tr>
        <th scope="col">At</th><th scope="col">Model</th><th scope="col">Route</th>
        ${NUMBERS.map(([name]) => html`<th scope="col" class="number" key=${name}>${name}</th>`)}
        <th scope="col">End</th>
      </tr></thead>
      <tbody>${rows.map((one) => html`<${Row} key=${one.id} one=${one} />`)}</tbody>
    </table>
  </div>`;
}

/** A request. In a narrow window each number stands beside its name, `data-name`. */
function Row({ one }) {
  return html`<tr class=${isError(one) ? "failed" : undefined} title=${plain(one.id)}>
    <td>${clock(one.at)}</td>
    <td class="name"><bdi>${plain(one.model) || "–"}</bdi></td>
    <td class="mono route">${plain(one.route)}</td>
    ${NUMBERS.map(([name, value]) => html`<td key=${name} data-name=${name}
      class=${name === "Cached" ? "number cached" : "number"}>${value(one)}</td>`)}
    <td class="end">${end(one)}</td>
  </tr>`;
}

function end(one) {
  if (isStopped(one)) return html`<span class="badge">stopped by the client</span>`;
  const finish = one.finish_reason ? plain(one.finish_reason) : "";
  if (!isError(one)) return finish || one.status;
  return html`<span class="badge failed">${one.status} ${plain(one.error ?? "")}</span>`;
}
