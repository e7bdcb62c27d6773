// Tells of the conversation that was deleted last, and brings it back.
import { Icon } from "../parts/icons.js";
import { useSignal } from "../parts/signal.js";
import { html, useEffect, useRef } from "../parts/ui.js";
import { bin, restore } from "./talk.js";

export function Undo({ hide }) {
  const deleted = useSignal(bin).at(-1);
  const button = useRef();
  useEffect(() => button.current?.focus(), [deleted]);
  if (!deleted) return null;
  const undo = async () => {
    const id = await restore();
    hide();
    location.hash = `#talk/${id}`;
  };
  return html`<p class="undo" role="status">
    <span>Deleted: <bdi>${deleted.talk.conversation.title || "Untitled"}</bdi></span>
    <button ref=${button} onClick=${undo}>Undo</button>
    <button class="icon-only" aria-label="Dismiss" title="Delete for good"
      onClick=${() => bin.set([])}><${Icon} name="close" /></button>
  </p>`;
}
