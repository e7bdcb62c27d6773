// Models to get: the usual ones, those of the hub, and whatever has a name or an address.
import { useAnswer } from "../api/live.js";
import { bytes, number, plain } from "../parts/format.js";
import { useSignal } from "../parts/signal.js";
import { html, useState } from "../parts/ui.js";
import { Abilities } from "./abilities.js";
import { arrived, Fetches, fetches, start } from "./fetching.js";

const TYPING_MS = 300;
const KINDS = {
  directory: "A directory with a model.",
  hub: "A name of the hub; it is not on this machine yet.",
  catalogue: "In the catalogue; it is not on this machine yet.",
  unknown: "No model of this name is known.",
};
const FITS = {
  fits: "Its weights and 32k tokens of context fit this server's memory",
  tight: "There is room for short conversations only",
  "too large": "It is too large for this server's memory",
};

export function Shop() {
  const [name, set] = useState("");
  const [words, search] = useState("");
  const changes = [useSignal(arrived)];
  const offers = useAnswer(`admin/models/search?text=${encodeURIComponent(words)}`, { changes });
  const { told: resolved } = useAnswer(
    name.trim() && `admin/models/resolve?name=${encodeURIComponent(name.trim())}`,
    { changes, delay: TYPING_MS },
  );
  const running = useSignal(fetches)[name.trim()]?.runs;
  const submit = (event) => {
    event.preventDefault();
    search(name.trim());
  };
  return html`<section class="card" aria-labelledby="shop">
    <h2 id="shop">Get a model</h2>
    <form class="pull" onSubmit=${submit}>
      <label>
        Model
        <input type="text" class="mono" placeholder="words, org/name or address"
          spellcheck="false" autocapitalize="off" value=${name}
          onInput=${(event) => set(event.target.value)} />
      </label>
      <button class="primary">${name.trim() ? "Search the hub" : "Show usual models"}</button>
      <button type="button" disabled=${!name.trim() || running}
        onClick=${() => start(name.trim())}>Get</button>
    </form>
    <div class="resolved" aria-live="polite">
      ${resolved && html`<${Resolved} resolved=${resolved} choose=${set} />`}
    </div>
    <${Fetches} />
    <${Offers} words=${words} ...${offers} />
  </section>`;
}

function Resolved({ resolved, choose }) {
  const { alias_of: target, here, kind, path, problem, suggestions } = resolved;
  return html`<p class="hint">
      ${target && html`An alias of <bdi>${plain(target)}</bdi>. `}
      ${here ? html`It is here, in <bdi class="mono">${plain(path)}</bdi>.` : KINDS[kind]}
    </p>
    ${suggestions.length > 0 && html`<p class="row near">Did you mean
      ${suggestions.map((name) => html`<button key=${name} type="button"
        onClick=${() => choose(name)}><bdi>${plain(name)}</bdi></button>`)}
    </p>`}
    ${problem && html`<p class="problem">${plain(problem)}</p>`}`;
}

function Offers({ words, told, problem: failure }) {
  if (!told && !failure) return html`<p class="hint" role="status">Searching…</p>`;
  const { models, problem } = failure ? { models: [], problem: failure.message } : told;
  const bestFirst = [...models].sort((one, other) => other.best - one.best);
  return html`<h3>${words ? `Models for “${plain(words)}”` : "Usual models"}</h3>
    ${problem && html`<p class="problem" role="alert">${plain(problem)}</p>`}
    ${!models.length && !problem && html`<p class="hint">The hub has no such model for MLX.</p>`}
    <ul class="offers" aria-label="Models to get">
      ${bestFirst.map((offer) => html`<${Offer} key=${offer.name} offer=${offer} />`)}
    </ul>`;
}

function Offer({ offer }) {
  const { name, model, abilities, fit, best, here, gated, problem } = offer;
  const under = useSignal(fetches)[name];
  return html`<li class=${`offer${fit === "too large" ? " large" : ""}`}>
    <div class="what">
      <h4><bdi>${plain(name)}</bdi></h4>
      ${model !== name && html`<p class="hint"><bdi>${plain(model)}</bdi></p>`}
    </div>
    <p class="figures">${figures(offer)}</p>
    <p class="state">
      ${fit && html`<span class=${`badge ${fit.replace(" ", "-")}`} title=${FITS[fit]}>
        ${best ? "best that fits" : fit}</span>`}
      <${Abilities} abilities=${abilities} />
      ${gated && html`<span class="badge">gated</span>`}
    </p>
    ${here
      ? html`<span class="hint here">here</span>`
      : html`<button aria-label=${`Get ${name}`} disabled=${!!under || !!problem}
          onClick=${() => start(name)}>${under ? "Getting" : "Get"}</button>`}
    ${problem && html`<p class="problem">${plain(problem)}</p>`}
  </li>`;
}

function figures({ name, model, here, bytes: size, download_bytes: download, ...offer }) {
  const about = name === model || download !== size ? "" : "about ";
  const context = offer.context_length;
  const facts = [size && `${about}${bytes(size)}`, context && `${number(context)} tokens`];
  if (!here && download && download !== size) facts.push(`${bytes(download)} to download`);
  return facts.filter(Boolean).join(", ");
}
