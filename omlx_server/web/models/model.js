// One model of this machine: what it holds, its other names, and what can be done with it.
import { get, patch, post } from "../api/client.js";
import { bytes, number, plain, plural, seconds } from "../parts/format.js";
import { LoadBar, loadInWords } from "../parts/load.js";
import { html, useState } from "../parts/ui.js";
import { Abilities } from "./abilities.js";

const ALIASES = "models.aliases";

export function Model({ model, again, names }) {
  const [working, work] = useState("");
  const [problem, fail] = useState(null);
  const run = async (what, action) => {
    work(what);
    fail(null);
    try {
      await action();
    } catch (error) {
      fail(error);
    }
    work("");
    again();
  };
  const act = (what, fields = {}) =>
    run(what, () => post(`admin/models/${what}`, { model: model.name, ...fields }));
  const here = model.state === "loaded";
  const others = model.names.filter((name) => name !== model.name);
  const shown = problem?.message ?? model.problem;
  return html`<li class="model">
    <div class="what">
      <h2><bdi>${plain(model.name)}</bdi></h2>
      <p class="hint">
        ${model.kind}${model.default && ", default"}${others.length >
        0 && html`; also <bdi>${others.map(plain).join(", ")}</bdi>`}
      </p>
      ${model.abilities.length > 0 && html`<p class="abilities">
        <${Abilities} abilities=${model.abilities} /></p>`}
    </div>
    <p class="state"><span class=${`badge ${model.state}`}>
        ${model.state === "absent" ? "not loaded" : model.state}</span>
      ${model.pinned && html`<span class="badge pinned">pinned</span>`}
      ${model.in_use > 0 &&
      html`<span class="badge busy">${plural(model.in_use, "request")}</span>`}
    </p>
    <${Facts} model=${model} here=${here} />
    <${Actions} model=${model} here=${here} working=${working} act=${act} />
    ${model.load?.total > 0 && html`<div class="progress">
      <${LoadBar} load=${model.load} name=${model.name} />
      <p class="hint">${loadInWords(model.load)} in memory</p>
    </div>`}
    ${shown && html`<p class="problem" role="alert">${plain(shown)}</p>`}
    <${Details} model=${model} here=${here} run=${run} working=${working} names=${names} />
  </li>`;
}

function Facts({ model, here }) {
  return FactList([
    ["Memory", here ? bytes(model.weight_bytes) : "–"],
    ["Disk", bytes(model.disk_bytes)],
    ["Experts", plain(model.experts)],
    ["Context", number(model.context_length)],
    ["Idle", here ? idle(model) : "–"],
    ["Adapters", model.adapters?.map(plain).join(", ")],
  ]);
}

/** Names with their values; those without one are left out. */
function FactList(facts) {
  return html`<dl class="facts">
    ${facts.map(([name, value]) => value && html`<div key=${name}><dt>${name}</dt>
      <dd>${value}</dd></div>`)}
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

function Details({ model, here, run, working, names }) {
  const facts = FactList([
    ["Path", html`<bdi class="mono">${plain(model.path)}</bdi>`],
    ["With 32k tokens of context", model.fit],
    ["Presets", model.presets.map(plain).join(", ")],
  ]);
  const change = (name, target) => run("alias", () => changeAlias(name, target));
  return html`<details class="more">
    <summary>Details<span class="unseen"> of ${plain(model.name)}</span></summary>
    ${facts}
    <${Aliases} model=${model} change=${change} names=${names} />
    <${Removal} model=${model} here=${here} run=${run} working=${working} />
  </details>`;
}

function Aliases({ model, change, names }) {
  const [name, set] = useState("");
  const taken = names.includes(name.trim());
  const add = (event) => {
    event.preventDefault();
    if (!name.trim() || taken) return;
    change(name.trim(), model.name);
    set("");
  };
  return html`<form class="pull alias" onSubmit=${add}>
    <label>New alias of ${plain(model.name)}
      <input type="text" class="mono" spellcheck="false" autocapitalize="off" value=${name}
        onInput=${(event) => set(event.target.value)} /></label>
    <button type="submit" disabled=${!name.trim() || taken}>Add alias</button>
    ${model.aliases.map((alias) => html`<button key=${alias} type="button"
      aria-label=${`Remove the alias ${alias}`} onClick=${() => change(alias, null)}>
      <bdi>${plain(alias)}</bdi> ×</button>`)}
    ${taken && html`<p class="hint">A model has this name already.</p>`}
  </form>`;
}

/** Sets an alias in the server's config, or removes it if `target` is null. */
async function changeAlias(name, target) {
  const { settings } = await get("admin/settings");
  const aliases = { ...settings.find((setting) => setting.key === ALIASES).value };
  if (target === null) delete aliases[name];
  else aliases[name] = target;
  await patch("admin/settings", { [ALIASES]: aliases });
}

function Removal({ model, here, run, working }) {
  const remove = () =>
    confirm(`Delete ${plain(model.name)}, ${bytes(model.disk_bytes)}, from the disk?`) &&
    run("remove", async () => {
      if (here) await post("admin/models/unload", { model: model.name });
      await post("admin/models/remove", { model: model.name });
    });
  if (model.default) {
    return html`<p class="hint">The server was started with it, so it can't be deleted here.</p>`;
  }
  return html`<button class="danger" aria-label=${`Delete ${model.name}`} disabled=${!!working}
    onClick=${remove}>${working === "remove" ? "Deleting" : "Delete"}</button>`;
}
