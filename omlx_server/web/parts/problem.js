// Why a view has nothing new to show, and what can be done.
import { askFor } from "../api/session.js";
import { html } from "./ui.js";

export function Problem({ error, again }) {
  if (!error) return null;
  const closed = error.status === 401;
  return html`<div class="problem banner" role="alert">
    <p>${closed ? "The server wants a key or a token for this." : error.message}</p>
    ${closed
      ? html`<button onClick=${() => askFor(error)}>Enter it</button>`
      : again && html`<button onClick=${again}>Try again</button>`}
  </div>`;
}
