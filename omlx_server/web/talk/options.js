// System prompt and sampling of a conversation. An empty field leaves the choice to the model.
import { html } from "../parts/ui.js";
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

export function Options({ talk }) {
  const { options } = talk.conversation;
  const set = (name, value) => {
    const changed = { ...options, [name]: value };
    rememberOptions(changed);
    talk.set({ options: changed });
  };
  const field = ([name, label, bounds]) => html`<label key=${name}>
    ${label}
    <input type="number" ...${bounds} placeholder="default" value=${options[name] ?? ""}
      onChange=${(event) => set(name, event.target.value)} />
  </label>`;
  return html`<section class="options" aria-label="Options" id="talk-options">
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
