// Why a view has nothing new to show, and what can be done.
import { askFor } from "../api/session.js";
import { html } from "./ui.js";

export function Problem({ error, again }) {
  if (!error) return null;
  return html`<div class="problem banner" role="alert">
    <p>${error.message}</p>
    ${error.status === 401
      ? html`<button onClick=${() => askFor(error)}>Enter it</button>`
      : again && html`<button onClick=${again}>Try again</button>`}
  </div>`;
}
