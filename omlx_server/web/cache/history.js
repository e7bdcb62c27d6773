// The account of the memory over the last minutes, as stacked areas.
import { bytes, seconds } from "../parts/format.js";
import { html } from "../parts/ui.js";
import { LINES } from "./ledger.js";

const [WIDTH, HEIGHT] = [600, 120];
const HEADROOM = 1.25;
const SHOWN = LINES.map(([name]) => name).filter((name) => name !== "free");

export function History({ samples }) {
  if (samples.length < 2) {
    return html`<div class="history"><p class="hint">Its history begins now.</p></div>`;
  }
  const span = samples.at(-1).at - samples[0].at;
  const most = Math.max(...samples.map(held), 1) * HEADROOM;
  return html`<figure class="history">
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img"
      aria-label=${`Memory over ${seconds(span)}: ${trend(samples)}`}>
      ${areas(samples, most).map(
        ({ name, path }) => html`<path key=${name} class=${name} d=${path} />`,
      )}
    </svg>
    <figcaption>
      <span>${seconds(span)} ago</span><span>full height: ${bytes(most)}</span><span>now</span>
    </figcaption>
  </figure>`;
}

function areas(samples, most) {
  const first = samples[0].at;
  const span = samples.at(-1).at - first || 1;
  const xs = samples.map(({ at }) => (WIDTH * (at - first)) / span);
  let below = samples.map(() => 0);
  return SHOWN.map((name) => {
    const above = samples.map((sample, i) => below[i] + (sample[name] ?? 0));
    const path = outline(xs, below, above, most);
    below = above;
    return { name, path };
  });
}

function outline(xs, below, above, most) {
  const point = (x, value) => `${x.toFixed(1)} ${(HEIGHT - (HEIGHT * value) / most).toFixed(2)}`;
  const top = xs.map((x, i) => point(x, above[i]));
  const bottom = xs.map((x, i) => point(x, below[i])).reverse();
  return `M${[...top, ...bottom].join("L")}Z`;
}

function held(sample) {
  return SHOWN.reduce((sum, name) => sum + (sample[name] ?? 0), 0);
}

function trend(samples) {
  return `held ${bytes(held(samples[0]))} at first, ${bytes(held(samples.at(-1)))} now`;
}
