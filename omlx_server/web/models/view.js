// The models of this machine: what is loaded and what it holds; load, unload, pin and pull.
import { get, post } from "../api/client.js";
import { state, useLive } from "../api/live.js";
import { entered } from "../api/session.js";
import { bytes, number, plain, plural, seconds } from "../parts/format.js";
import { Problem } from "../parts/problem.js";
import { useSignal } from "../parts/signal.js";
import { html, useCallback, useEffect, useState } from "../parts/ui.js";
import { Pull } from "./pull.js";

const LOOK_MS = 5000;

export function ModelsView() {
  useLive();
  const { told, problem, again } = useAdminModels();
  const loaded = told?.models.filter((model) => model.state === "loaded") ?? [];
  return html`<div class="view">
    <header class="head">
      <h1>Models</h1>
      ${told && html`<p class="hint">${summary(told, loaded)}</p>`}
    </header>
    <${Problem} error=${problem} again=${again} />
    <${Pull} pulled=${again} />
    ${told && html`<section class="card" aria-label="Models on this machine">
      ${told.models.length
        ? html`<ul class="models">
            ${told.models.map(
              (one) => html`<${Model} key=${one.name} model=${one} again=${again} />`,
            )}
          </ul>`
        : html`<p class="empty">No model is on this machine yet. Pull one above.</p>`}
    </section>`}
  </div>`;
}

function summary({ models, memory }, loaded) {
  const here = plural(models.length, "model");
  const held = `weights hold ${bytes(memory.weights)} of ${bytes(memory.limit)}`;
  return `${here}, ${loaded.length} loaded; ${held}`;
}

/** The models, asked for anew when their states change, and every few seconds. */
function useAdminModels() {
  const [told, set] = useState(null);
  const [problem, fail] = useState(null);
  const live = useSignal(state);
  const count = useSignal(entered);
  const again = useCallback(async () => {
    try {
      set(await get("admin/models"));
      fail(null);
    } catch (error) {
      fail(error);
    }
  }, []);
  useEffect(() => void again(), [count, JSON.stringify(live?.models)]);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || again(), LOOK_MS);
    return () => clearInterval(timer);
  }, []);
  return { told, problem, again };
}

function Model({ model, again }) {
  const [working, work] = useState("");
  const [problem, fail] = useState(null);
  const act = async (what, fields = {}) => {
    work(what);
    fail(null);
    try {
      await post(`admin/models/${what}`, { model: model.name, ...fields });
    } catch (error) {
      fail(error);
    }
    work("");
    again();
  };
  const here = model.state === "loaded";
  const aliases = model.names.filter((name) => name !== model.name);
  return html`<li class="model">
    <div class="what">
      <h2><bdi>${plain(model.name)}</bdi></h2>
      <p class="hint">
        ${model.kind}${model.default ? ", default" : ""}${aliases.length > 0 &&
        html`; also <bdi>${aliases.map(plain).join(", ")}</bdi>`}
      </p>
    </div>
    <p class="state"><span class=${`badge ${model.state}`}>${model.state}</span>
      ${model.pinned && html`<span class="badge pinned">pinned</span>`}
      ${model.in_use > 0 &&
      html`<span class="badge busy">${plural(model.in_use, "request")}</span>`}
    </p>
    <${Facts} model=${model} here=${here} />
    <${Actions} model=${model} here=${here} working=${working} act=${act} />
    ${(problem?.message ?? model.problem) &&
    html`<p class="problem" role="alert">${plain(problem?.message ?? model.problem)}</p>`}
  </li>`;
}

function Facts({ model, here }) {
  const facts = [
    ["Memory", here ? bytes(model.weight_bytes) : "–"],
    ["Disk", bytes(model.disk_bytes)],
    ["Context", number(model.context_length)],
    ["Idle", here ? idle(model) : "–"],
  ];
  if (model.adapters?.length) facts.push(["Adapters", model.adapters.map(plain).join(", ")]);
  return html`<dl class="facts">
    ${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

function idle({ in_use: users, idle_seconds: idle, ttl_seconds: ttl }) {
  if (users) return "in use";
  return ttl ? `${seconds(idle)} of ${seconds(ttl)}` : seconds(idle);
}

function Actions({ model, here, working, act }) {
  const label = (words) => `${words} ${model.name}`;
  const moving = !!working || model.state === "loading" || model.state === "unloading";
  return html`<div class="row">
    ${here
      ? html`<button key="unload" disabled=${moving} aria-label=${label("Unload")}
          onClick=${() => act("unload")}>${working === "unload" ? "Unloading" : "Unload"}</button>`
      : html`<button key="load" disabled=${moving} aria-label=${label("Load")}
          onClick=${() => act("load")}>${working === "load" ? "Loading" : "Load"}</button>`}
    <button disabled=${!!working} aria-label=${label(model.pinned ? "Unpin" : "Pin")}
      onClick=${() => act("pin", { pinned: !model.pinned })}>
      ${model.pinned ? "Unpin" : "Pin"}</button>
  </div>`;
}
