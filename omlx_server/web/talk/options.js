// System prompt and sampling of a conversation. An empty field leaves the choice to the model.
// Named presets of them are in this browser's localStorage.
import { number } from "../parts/format.js";
import { Signal, useSignal } from "../parts/signal.js";
import { html, useState } from "../parts/ui.js";
import { extra, rememberOptions } from "./conversation.js";

const NUMBERS = [
  ["temperature", "Temperature", { min: 0, max: 2, step: 0.05 }],
  ["top_p", "Top p", { min: 0, max: 1, step: 0.01 }],
  ["top_k", "Top k", { min: 0, max: 100000, step: 1 }],
  ["min_p", "Min p", { min: 0, max: 1, step: 0.01 }],
  ["max_tokens", "Longest answer", { min: 1, step: 1 }],
  ["seed", "Seed", { step: 1 }],
];
const EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

const STORED = "omlx.presets";
const OWN = "\n"; // no name of a preset

/** Options by the name of their preset. */
const presets = new Signal(storedPresets());
addEventListener("storage", ({ key }) => key === STORED && presets.set(storedPresets()));

/** The options of a conversation. Empty fields show what the model then uses. */
export function Options({ talk, model }) {
  const { options } = talk.conversation;
  const change = (changed) => {
    rememberOptions(changed);
    talk.set({ options: changed });
  };
  const set = (name, value) => change({ ...options, [name]: value });
  const field = ([name, label, bounds]) => html`<label key=${name}>
    ${label}
    <input type="number" ...${bounds} placeholder=${inForce(model, name)}
      value=${options[name] ?? ""} onChange=${(event) => set(name, event.target.value)} />
  </label>`;
  return html`<section class="options" aria-label="Options" id="talk-options">
    <${Presets} options=${options} apply=${change} />
    <label class="wide">
      System prompt
      <textarea rows="3" dir="auto" value=${options.system ?? ""}
        onInput=${(event) => set("system", event.target.value)}></textarea>
    </label>
    ${NUMBERS.map(field)}
    <label>
      Reasoning effort
      <select value=${options.effort ?? ""}
        onChange=${(event) => set("effort", event.target.value)}>
        <option value="">default</option>
        ${EFFORTS.map((effort) => html`<option key=${effort} value=${effort}>${effort}</option>`)}
      </select>
    </label>
    <${Extra} text=${options.extra ?? ""} set=${(text) => set("extra", text)} />
  </section>`;
}

function inForce(model, name) {
  const value = model?.default_parameters?.[name];
  const unit = name === "max_tokens" ? " tokens" : "";
  if (value !== undefined && value !== null) return `default: ${value}${unit}`;
  if (name !== "max_tokens" || !model?.max_model_len) return "default";
  return `${number(model.max_model_len)} tokens`; // what the context has room for
}

function Presets({ options, apply }) {
  const all = useSignal(presets);
  const chosen = presetOf(options, all);
  const [name, setName] = useState(chosen in all ? chosen : "");
  const [problem, setProblem] = useState("");
  const keep = (changed) => {
    try {
      localStorage.setItem(STORED, JSON.stringify(changed));
      setProblem("");
    } catch (error) {
      setProblem(`This browser does not keep the preset: ${error.message}`);
    }
    presets.set(storedPresets());
  };
  const choose = (event) => {
    setName(event.target.value);
    apply(all[event.target.value] ?? {});
  };
  const save = (event) => {
    event.preventDefault();
    if (name.trim()) keep({ ...all, [name.trim()]: options });
  };
  const drop = () => {
    const { [name]: _, ...others } = all;
    keep(others);
    setName("");
  };
  return html`<form class="wide row presets" onSubmit=${save}>
    ${Object.keys(all).length > 0 && html`<select aria-label="Preset" onChange=${choose}
      value=${chosen}>
      <option value="">No preset</option>
      ${chosen === OWN && html`<option value=${OWN} disabled>Own values</option>`}
      ${Object.keys(all).map((one) => html`<option key=${one} value=${one}>${one}</option>`)}
    </select>`}
    <input aria-label="Name of the preset" placeholder="Name of a preset" maxlength="60"
      value=${name} onInput=${(event) => setName(event.target.value)} />
    <button type="submit" disabled=${!name.trim()}>Save preset</button>
    ${name in all && html`<button type="button" onClick=${drop}>Delete preset</button>`}
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
  </form>`;
}

/** The name of the preset with these options; OWN for others, and "" where all are empty. */
function presetOf(options, all) {
  const wanted = given(options);
  const same = Object.keys(all).find((name) => given(all[name]) === wanted);
  return same ?? (wanted === given({}) ? "" : OWN);
}

function given(options) {
  return JSON.stringify(Object.entries(options).filter(([, value]) => value !== "").sort());
}

function storedPresets() {
  try {
    return Object.assign(Object.create(null), JSON.parse(localStorage.getItem(STORED)));
  } catch {
    return Object.create(null); // what is stored can't be read
  }
}

function Extra({ text, set }) {
  const problem = problemOf(text);
  return html`<label class="wide">
    More fields of the request, as JSON: tools, response_format, stop
    <textarea rows="2" class="mono" spellcheck="false" value=${text}
      placeholder='{"response_format": {"type": "json_object"}}'
      aria-invalid=${String(!!problem)} onInput=${(event) => set(event.target.value)}></textarea>
    ${problem && html`<span class="problem">${problem}</span>`}
  </label>`;
}

function problemOf(text) {
  try {
    extra(text);
    return "";
  } catch (error) {
    return error.message;
  }
}
