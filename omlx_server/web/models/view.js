// The models: what is on this machine, and what there is to get.
import { state, useAnswer, useLive } from "../api/live.js";
import { bytes, plural } from "../parts/format.js";
import { Problem } from "../parts/problem.js";
import { useSignal } from "../parts/signal.js";
import { html, useEffect } from "../parts/ui.js";
import { arrived, fetches } from "./fetching.js";
import { Model } from "./model.js";
import { Shop } from "./shop.js";

const LOOK_MS = 5000;

export function ModelsView() {
  useLive();
  const { told, problem, again } = useAdminModels();
  const loaded = told?.models.filter((model) => model.state === "loaded") ?? [];
  const under = useSignal(fetches);
  const here = told?.models.filter(({ name, state }) => state !== "failed" || !under[name]);
  const names = told?.models.flatMap((model) => model.names) ?? [];
  return html`<div class="view">
    <header class="head">
      <h1>Models</h1>
      ${told && html`<p class="hint">${summary(told, loaded)}</p>`}
    </header>
    <${Problem} error=${problem} again=${again} />
    ${told && html`<section class="card" aria-label="Models on this machine">
      ${here.length
        ? html`<ul class="models">
            ${here.map((one) => html`<${Model} key=${one.name} model=${one} again=${again}
              names=${names} />`)}
          </ul>`
        : html`<p class="empty">No model is on this machine yet. Get one below.</p>`}
    </section>`}
    ${told && html`<${Shop} />`}
  </div>`;
}

function summary({ models, memory }, loaded) {
  const here = plural(models.length, "model");
  const held = `weights hold ${bytes(memory.weights)} of ${bytes(memory.limit)}`;
  return `${here}, ${loaded.length} loaded; ${held}`;
}

/** The models, asked for anew when their states change, and every few seconds. */
function useAdminModels() {
  const live = useSignal(state);
  const changes = [useSignal(arrived), JSON.stringify(live?.models)];
  const answer = useAnswer("admin/models", { changes });
  useEffect(() => {
    const timer = setInterval(() => document.hidden || answer.again(), LOOK_MS);
    return () => clearInterval(timer);
  }, []);
  return answer;
}
