// The text of a prompt, token for token, coloured by what of it is cached.
import { number } from "../parts/format.js";
import { html, useState } from "../parts/ui.js";

const AROUND = 24; // tokens on either side of the divergence that are drawn one by one
const BEFORE = 2000; // tokens before it that are shown at first

export function Tokens({ result }) {
  const [all, showAll] = useState(false);
  const { pieces, cached_tokens: cached, diverges_at: at, stored } = result;
  const leaves = at !== null && at !== undefined;
  const split = leaves ? at : cached;
  const first = all ? 0 : Math.max(0, split - BEFORE);
  const near = leaves ? Math.max(first, split - AROUND) : split;
  const after = leaves ? split + AROUND : split;
  return html`<div class="tokens" tabindex="0" role="group" aria-label="Tokens of the prompt">
    ${first > 0 && html`<button class="quiet" onClick=${() => showAll(true)}>
      Show ${number(first)} tokens before these</button>`}
    <div class="text" dir="auto">
      <${Known} pieces=${pieces} from=${first} to=${near} cached=${cached} />
      <${Single} pieces=${pieces} from=${near} to=${split} cached=${cached} />
      ${leaves && html`<mark class="leaves" title=${`Token ${at}`}>token ${number(at)}</mark>`}
      <${Single} pieces=${pieces} from=${split} to=${after} cached=${cached} />
      <span class="new">${pieces.slice(after).join("")}</span>
    </div>
    ${stored?.length > 0 && html`<div class="instead">
      <h3>What is cached goes on from there with</h3>
      <div class="text" dir="auto">
        <${Single} pieces=${stored} from=${0} to=${stored.length} kept=${true} /></div>
    </div>`}
  </div>`;
}

/** Tokens before the divergence: what would be restored, and what would be computed again. */
function Known({ pieces, from, to, cached }) {
  const middle = Math.min(Math.max(cached, from), to);
  return html`<span class="cached-text">${pieces.slice(from, middle).join("")}</span>
    <span class="known">${pieces.slice(middle, to).join("")}</span>`;
}

function Single({ pieces, from, to, cached, kept }) {
  return pieces.slice(from, to).map((piece, index) => {
    const place = from + index;
    const name = kept || place < cached ? "token cached-text" : "token";
    return html`<span key=${place} class=${name} data-token=${place}>${piece}</span>`;
  });
}
