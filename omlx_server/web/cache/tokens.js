// The text of a prompt, token for token, coloured by what of it is cached.
import { number } from "../parts/format.js";
import { html, useState } from "../parts/ui.js";

const AROUND = 24; // tokens on either side of the divergence that are drawn one by one
const BEFORE = 2000; // tokens before it that are shown at first

/** `result.pieces` are the texts of the tokens from `pieces_start` on: of a very long prompt those
 * around the divergence. */
export function Tokens({ result }) {
  const [all, showAll] = useState(false);
  const { pieces, pieces_start: start, cached_tokens: cached, diverges_at: at, stored } = result;
  const stop = start + pieces.length;
  const split = at ?? stop;
  const first = all ? start : Math.max(start, split - BEFORE);
  const near = Math.max(first, split - AROUND);
  const after = Math.min(stop, split + AROUND);
  const text = (from, to) => pieces.slice(from - start, to - start);
  const single = { text, cached };
  return html`<div class="tokens" tabindex="0" role="group" aria-label="Tokens of the prompt">
    ${first > start && html`<button class="quiet" onClick=${() => showAll(true)}>
      Show ${number(first - start)} tokens before these</button>`}
    <div class="text" dir="auto">
      <${Known} text=${text} from=${first} to=${near} cached=${cached} />
      <${Single} ...${single} from=${near} to=${split} />
      ${at !== null && html`<mark class="leaves">token ${number(at)}</mark>`}
      <${Single} ...${single} from=${split} to=${after} />
      <span>${text(after, stop).join("")}</span>
    </div>
    ${stored.length > 0 && html`<div class="instead">
      <h3>What is cached goes on from there with</h3>
      <div class="text" dir="auto">
        <${Single} text=${() => stored} from=${split} cached=${Infinity} /></div>
    </div>`}
  </div>`;
}

/** Tokens before the divergence: what would be restored, and what would be computed again. */
function Known({ text, from, to, cached }) {
  const middle = Math.min(Math.max(cached, from), to);
  return html`<span class="cached-text">${text(from, middle).join("")}</span>
    <span class="known">${text(middle, to).join("")}</span>`;
}

function Single({ text, from, to, cached }) {
  return text(from, to).map((piece, index) => {
    const place = from + index;
    const name = place < cached ? "token cached-text" : "token";
    return html`<span key=${place} class=${name} data-token=${place}>${piece}</span>`;
  });
}
