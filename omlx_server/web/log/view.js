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
      <label>Search <input type="search" placeholder="model, route, finish, id" value=${words}
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

function isError(one) {
  return !!one.error || one.status >= 400;
}

const NUMBERS = ["In", "Cached", "Out", "TTFT", "tok/s", "Took"];

function Table({ rows }) {
  return html`<div class="card scroll" tabindex="0" role="region" aria-label="Requests">
    <table class="log">
      <thead><tr>
        <th scope="col">At</th><th scope="col">Model</th><th scope="col">Route</th>
        ${NUMBERS.map((name) => html`<th scope="col" class="number" key=${name}>${name}</th>`)}
        <th scope="col">End</th>
      </tr></thead>
      <tbody>${rows.map((one) => html`<${Row} key=${one.id} one=${one} />`)}</tbody>
    </table>
  </div>`;
}

function Row({ one }) {
  return html`<tr class=${isError(one) ? "failed" : undefined} title=${plain(one.id)}>
    <td>${clock(one.at)}</td>
    <td class="name"><bdi>${plain(one.model) || "–"}</bdi></td>
    <td class="mono">${plain(one.route)}</td>
    <td class="number">${number(one.prompt_tokens)}</td>
    <td class="number cached">${number(one.cached_tokens)}</td>
    <td class="number">${number(one.completion_tokens)}</td>
    <td class="number">${seconds(one.ttft_seconds)}</td>
    <td class="number">${digits(one.tokens_per_second)}</td>
    <td class="number">${seconds(one.seconds)}</td>
    <td>${end(one)}</td>
  </tr>`;
}

function end(one) {
  const finish = one.finish_reason ? plain(one.finish_reason) : "";
  if (!isError(one)) return finish || one.status;
  return html`<span class="badge failed">${one.status} ${plain(one.error ?? "")}</span>`;
}
