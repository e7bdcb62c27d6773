// How much of a model's weights is in memory while it loads, as the server tells it.
import { bytes, plain } from "./format.js";
import { html } from "./ui.js";

export function loadInWords({ bytes: read, total }) {
  return `${bytes(read)} of ${bytes(total)}`;
}

/** Nothing while it is not known how much there is. */
export function LoadBar({ load, name }) {
  if (!load?.total) return null;
  return html`<progress max=${load.total} value=${load.bytes}
    aria-label=${`Weights of ${plain(name)} in memory`}></progress>`;
}
