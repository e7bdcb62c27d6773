// How often the prefix cache had something, and why it had not.
import { number, share } from "../parts/format.js";
import { html } from "../parts/ui.js";

const WHY = {
  new_prefix: "nothing begins like it",
  diverged: "it went on differently",
  evicted: "it had to make way",
  no_checkpoint: "no checkpoint where it would start",
  namespace: "kept for another namespace",
  unreadable: "it could not be read",
  no_room: "no room in memory to bring it back",
  slow: "reading it is slower than computing",
  late: "reading it took too long",
};

export function Counters({ counters }) {
  const { found_tokens: found, looked_up_tokens: lookedUp } = counters;
  const misses = Object.entries(counters.misses ?? {}).filter(([, count]) => count);
  const most = Math.max(counters.hits ?? 0, ...misses.map(([, count]) => count), 1);
  const named = ([reason, count]) => [reason.replaceAll("_", " "), count, WHY[reason] ?? ""];
  const rows = [["hits", counters.hits ?? 0, "all of the prompt was there"], ...misses.map(named)];
  return html`<div class="counters">
    <dl class="facts">
      <div><dt>Tokens found</dt><dd>${share(found, lookedUp)}</dd></div>
      <div><dt>of looked up</dt><dd>${number(lookedUp)}</dd></div>
      <div><dt>from the cold tier</dt><dd>${number(counters.cold_tokens)}</dd></div>
      <div><dt>Evicted blocks</dt><dd>${number(counters.evicted_blocks)}</dd></div>
    </dl>
    <table class="reasons" aria-label="Hits, and misses by reason">
      <tbody>
        ${rows.map(([name, count, why]) => html`<tr key=${name} class=${name}>
          <th scope="row">${name}<span class="hint">${why}</span></th>
          <td class="number">${number(count)}</td>
          <td class="track">${count > 0 &&
          html`<span style=${{ width: `${(100 * count) / most}%` }}></span>`}</td>
        </tr>`)}
      </tbody>
    </table>
  </div>`;
}
