// What a model can do beside text: tools, thinking, images, embeddings.
import { html } from "../parts/ui.js";

export function Abilities({ abilities }) {
  return abilities.map((each) => html`<span key=${each} class="badge">${each}</span>`);
}
