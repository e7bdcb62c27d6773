// System prompt and sampling of a conversation. An empty field leaves the choice to the model.
// Named presets of them are in this browser's localStorage.
import { Signal, useSignal } from "../parts/signal.js";
import { html, useState } from "../parts/ui.js";
import { extra, rememberOptions } from "./conversation.js";

const NUMBERS = [
  ["temperature", "Temperature", { min: 0, max: 2, step: 0.05 }],
  ["top_p", "Top p", { min: 0, max: 1, step: 0.01 }],
  ["top_k", "Top k", { min: 0, max: 100000, step: 1 }],
  ["min_p", "Min p", { min: 0, max: 1, step: 0.01 }],
  ["max_tokens", "Longest answer (tokens)", { min: 1, step: 1 }],
  ["seed", "Seed", { step: 1 }],
];
const EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

const STORED = "omlx.presets";

/** Options by the name of their preset. */
const presets = new Signal(storedPresets());
addEventListener("storage", ({ key }) => key === STORED && presets.set(storedPresets()));

/** The options of a conversation. `defaults` are the model's, for fields that are empty. */
export function Options({ talk, defaults }) {
  const { options } = talk.conversation;
  const change = (changed) => {
    rememberOptions(changed);
    talk.set({ options: changed });
  };
  const set = (name, value) => change({ ...options, [name]: value });
  const field = ([name, label, bounds]) => html`<label key=${name}>
    ${label}
    <input type="number" ...${bounds} placeholder=${inForce(defaults?.[name])}
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

function inForce(value) {
  return value === undefined || value === null ? "default" : `default: ${value}`;
}

function Presets({ options, apply }) {
  const all = useSignal(presets);
  const [name, setName] = useState("");
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
    if (event.target.value in all) apply(all[event.target.value]);
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
      value=${name in all ? name : ""}>
      <option value="">Choose a preset</option>
      ${Object.keys(all).map((one) => html`<option key=${one} value=${one}>${one}</option>`)}
    </select>`}
    <input aria-label="Name of the preset" placeholder="Name of a preset" maxlength="60"
      value=${name} onInput=${(event) => setName(event.target.value)} />
    <button type="submit" disabled=${!name.trim()}>Save preset</button>
    ${name in all && html`<button type="button" onClick=${drop}>Delete preset</button>`}
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
  </form>`;
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
