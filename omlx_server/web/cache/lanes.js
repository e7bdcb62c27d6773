// Requests at work, each in the lane of what happens to it.
import { digits, number, plain, seconds, share } from "../parts/format.js";
import { html } from "../parts/ui.js";

const PLACES = ["queued", "restoring", "prefilling", "decoding", "paused"];
const MOST = 50; // of a lane that are shown

export function Lanes({ requests }) {
  return html`<div class="lanes">
    ${PLACES.map((place) => {
      const here = requests.filter((one) => one.place === place);
      return html`<section key=${place} class="lane" aria-label=${place}>
        <h3>${place} <span class="count">${here.length}</span></h3>
        ${here.slice(0, MOST).map((one) => html`<${Request} key=${one.id} one=${one} />`)}
        ${here.length > MOST && html`<p class="hint">and ${number(here.length - MOST)} more</p>`}
      </section>`;
    })}
  </div>`;
}

function Request({ one }) {
  const total = one.prompt_tokens || 1;
  const width = (tokens) => ({ width: `${Math.min(100, (100 * (tokens ?? 0)) / total)}%` });
  const rate = one.tokens_per_second;
  const prompt = `Prompt of ${number(one.prompt_tokens)} tokens`;
  return html`<article class="request" title=${plain(one.id)}>
    <p class="name"><bdi>${plain(one.model)}</bdi></p>
    <div class="prompt" role="img"
      aria-label=${`${prompt}: ${share(one.cached_tokens, total)} cached`}>
      <span class="was-cached" style=${width(one.cached_tokens)}></span>
      <span class="computed" style=${width(one.computed_tokens - one.cached_tokens)}></span>
    </div>
    <p class="figures">
      <span>${number(one.prompt_tokens)} in</span>
      ${one.cached_tokens > 0 &&
      html`<span class="cached">${number(one.cached_tokens)} cached</span>`}
      ${one.output_tokens > 0 && html`<span>${number(one.output_tokens)} out</span>`}
      ${rate > 0 && html`<span>${digits(rate)} tok/s</span>`}
      <span>${seconds(one.seconds)}</span>
    </p>
    ${one.choices > 1 && html`<p class="hint">${one.choices} choices</p>`}
    ${one.waits_for && html`<p class="hint">waits for ${plain(one.waits_for)}</p>`}
  </article>`;
}
