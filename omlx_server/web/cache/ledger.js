// The account of the memory as one bar, and its lines in words.
import { bytes, share } from "../parts/format.js";
import { html } from "../parts/ui.js";

/** The lines of the account, in the order of the bar, and what each is in words. */
export const LINES = [
  ["weights", "weights of models"],
  ["live", "running requests"],
  ["shared", "cached, in use"],
  ["blocks", "cached, unused"],
  ["checkpoints", "cached checkpoints"],
  ["pending", "to be written to disk"],
  ["step", "the step under way"],
  ["machine", "given up, as the machine is short"],
  ["free", "free"],
];

export function Ledger({ sample }) {
  const total = sample.limit || LINES.reduce((sum, [name]) => sum + (sample[name] ?? 0), 0);
  return html`<div class="ledger">
    <div class="stack" role="img" aria-label=${summary(sample)}>
      ${LINES.map(([name]) => {
        const width = total ? (100 * (sample[name] ?? 0)) / total : 0;
        const style = { width: `${width}%`, minWidth: width ? "2px" : 0 };
        return html`<span key=${name} class=${`part ${name}`} style=${style}></span>`;
      })}
    </div>
    <dl class="legend">
      ${LINES.map(([name, what]) => html`<div key=${name} title=${name}>
        <dt><span class=${`swatch ${name}`}></span>${what}</dt>
        <dd>${bytes(sample[name] ?? 0)}</dd>
      </div>`)}
    </dl>
    <p class="hint">Limit ${bytes(sample.limit)}${sample.pool !== undefined &&
    `; freed buffers that wait for their next use: ${bytes(sample.pool)}`}</p>
  </div>`;
}

function summary(sample) {
  const used = LINES.filter(([name]) => sample[name]);
  const words = used.map(([name, what]) => `${what} ${share(sample[name], sample.limit)}`);
  return `Of ${bytes(sample.limit)}: ${words.join(", ") || "nothing held"}`;
}
