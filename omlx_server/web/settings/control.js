// The field of one setting, by its type. A change is sent when the field is left or Enter is hit.
import { html, useEffect, useState } from "../parts/ui.js";

/** `change` takes the new value and returns whether the server took it; null: nothing can be
 * changed. */
export function Control({ id, setting, change }) {
  const { type, value } = setting;
  const written = type === "choice" ? String(value) : setting.text || asText(value);
  const [text, set] = useState(written);
  useEffect(() => set(written), [written]);
  const common = {
    id,
    disabled: !change,
    title: setting.takes,
    "aria-describedby": `${id}-help`,
  };
  if (type === "bool") {
    return html`<input ...${common} type="checkbox" class="switch" role="switch" checked=${value}
      onChange=${(event) => change(event.target.checked)} />`;
  }
  if (type === "choice") {
    const choose = (event) => change(setting.choices[event.target.selectedIndex]);
    return html`<select ...${common} value=${text} onChange=${choose}>
      ${setting.choices.map((one) => html`<option key=${one} value=${one}>${String(one)}</option>`)}
    </select>`;
  }
  const long = type === "list" || type === "table";
  const commit = async () => {
    if (text === written) return;
    await change(fromText(text, setting));
  };
  const keys = (event) => {
    if (event.key === "Escape") set(written);
    if (event.key === "Enter" && !long) event.target.blur();
  };
  const shared = {
    ...common,
    value: text,
    onInput: (event) => set(event.target.value),
    onBlur: commit,
    onKeyDown: keys,
  };
  if (long) {
    return html`<textarea ...${shared} class="mono" rows=${text.split("\n").length}
      spellcheck="false" placeholder=${type === "list" ? "one a line" : "JSON"}></textarea>`;
  }
  const number = type === "int" || type === "float";
  return html`<input ...${shared} class="mono" type="text" inputmode=${number ? "decimal" : "text"}
    spellcheck="false" />`;
}

function asText(value) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.join("\n");
  return typeof value === "object" ? JSON.stringify(value, null, 1) : String(value);
}

/** What the server is given. What can't be read as its type stays text: the server says what is
 * wrong with it. */
function fromText(text, { type, value, text: written, default_text: other }) {
  if (type === "int" || type === "float" || written || other) {
    return asNumber(text.replace(/(\d)\s*(s|days|tokens)\s*$/, "$1"));
  }
  if (type === "table") return asTable(text);
  if (type !== "list") return text;
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  return typeof value?.[0] === "number" ? lines.map(asNumber) : lines;
}

function asNumber(text) {
  return text.trim() === "" || Number.isNaN(Number(text)) ? text : Number(text);
}

function asTable(text) {
  try {
    return JSON.parse(text || "{}");
  } catch {
    return text;
  }
}
