// The settings in force, where each came from, and changing them in the config file.
import { patch, post } from "../api/client.js";
import { useAnswer } from "../api/live.js";
import { plain } from "../parts/format.js";
import { Problem } from "../parts/problem.js";
import { html, useEffect, useState } from "../parts/ui.js";
import { Control } from "./control.js";

const LOOK_MS = 2000;
const QUESTION = "Restart the server? Answers that run may finish; until the model is loaded "
  + "again, other requests fail.";

export function SettingsView() {
  const { told, problem, again } = useAnswer("admin/settings");
  const [words, search] = useState("");
  const [onlyChanged, choose] = useState(false);
  const all = told?.settings ?? [];
  const wanted = plainWords(words).split(/\s+/);
  const shown = all.filter((one) => matches(one, wanted, onlyChanged));
  return html`<div class="view">
    <header class="head">
      <h1>Settings</h1>
      ${told && html`<p class="hint">${told.file
        ? html`Changes are written to <bdi class="mono">${plain(told.file)}</bdi>`
        : "There is no config file yet: the first change makes it."}</p>`}
    </header>
    <${Problem} error=${problem} again=${again} />
    ${told && html`<${Restart} told=${told} again=${() => again({ quiet: true })} />`}
    <div class="filters">
      <label>Search <input type="search" placeholder="disk, speed, context …" value=${words}
        onInput=${(event) => search(event.target.value)} /></label>
      <label class="check"><input type="checkbox" checked=${onlyChanged}
        onChange=${(event) => choose(event.target.checked)} />
        Only what differs from its default</label>
    </div>
    ${told && !shown.length && html`<p class="card empty">No setting matches.</p>`}
    ${sections(shown).map(
      ([name, settings]) => html`<section class="card" key=${name} aria-labelledby=${`s-${name}`}>
        <h2 id=${`s-${name}`}>${name}</h2>
        <ul class="settings">
          ${settings.map(
            (one) => html`<${Setting} key=${one.key} setting=${one} again=${again} />`,
          )}
        </ul>
      </section>`,
    )}
  </div>`;
}

/** What waits for a restart, and the restart itself where a service manager does it. */
function Restart({ told, again }) {
  const [begun, begin] = useState(false);
  const [problem, fail] = useState(null);
  useEffect(() => {
    const timer = begun && setInterval(again, LOOK_MS);
    return () => clearInterval(timer);
  }, [begun]);
  const restart = () =>
    confirm(QUESTION) && post("admin/settings/restart").then(() => begin(true), fail);
  const waiting = told.settings.filter((one) => one.needs_restart).map((one) => one.key);
  if (!waiting.length) return null;
  return html`<div class="card restart" role="status">
    <p>${begun ? "The server starts again …" : `Needs a restart: ${waiting.join(", ")}`}</p>
    ${told.can_restart && !begun && html`<button type="button" onClick=${restart}>Restart</button>`}
    <${Problem} error=${problem} />
  </div>`;
}

function matches({ key, value, help, search_words, default: usual }, wanted, onlyChanged) {
  if (onlyChanged && same(value, usual)) return false;
  const text = plainWords(`${key} ${help} ${search_words}`);
  return wanted.every((word) => text.includes(word));
}

function plainWords(text) {
  return text.toLowerCase().replaceAll("_", " ");
}

function same(one, other) {
  return JSON.stringify(one) === JSON.stringify(other);
}

function sections(settings) {
  const found = new Map();
  for (const setting of settings) {
    const [section] = setting.key.split(".");
    found.set(section, [...(found.get(section) ?? []), setting]);
  }
  return [...found];
}

/** A text without its line ends, but for those of its list, whose lines begin with two spaces. */
function flowing(text) {
  const items = text.replace(/\n {3,}/g, " ").replace(/^( {2}.*)\n(?=\S)/gm, "$1\r");
  return items.replace(/\n {2}(\S+) +/g, "\r– $1: ").replaceAll("\n", " ").replaceAll("\r", "\n");
}

function Setting({ setting, again }) {
  const [note, tell] = useState(null);
  const write = async (sent) => {
    try {
      const { needs_restart: later } = await sent;
      const text = later.length ? "Saved. It takes effect with a restart." : "In force.";
      tell({ good: true, text });
      await again();
      return true;
    } catch (error) {
      tell({ good: false, text: error.message });
      return false;
    }
  };
  const change = (value) => write(patch("admin/settings", { [setting.key]: value }));
  const reset = () => write(post("admin/settings/reset", { keys: [setting.key] }));
  const [, name] = setting.key.split(/\.(.*)/s);
  const id = `set-${setting.key}`;
  const usual = setting.default_text || JSON.stringify(setting.default);
  const fixed = setting.by_hand || /^(flag|env)\b/.test(setting.origin);
  const where = setting.by_hand ? "on the server's machine" : "where the server is started";
  return html`<li class="setting">
    <div class="what">
      <label class="mono" for=${id}>${name}</label>
      <p id=${`${id}-help`} class="help hint">${flowing(setting.help)}</p>
    </div>
    <div class="value">
      <${Control} id=${id} setting=${setting} change=${fixed ? null : change} />
      <p class="hint">
        ${plain(setting.origin)}${fixed && `: can be changed ${where} only`}
        ${!fixed && !setting.live && !setting.needs_restart && ", needs a restart"}
        ${setting.needs_restart && html` <span class="badge busy">restart to apply</span>`}
        ${!fixed && setting.origin.startsWith("file ") && html` <button type="button"
          class="reset" onClick=${reset}>Reset to ${usual}</button>`}
      </p>
      ${note &&
      html`<p class=${note.good ? "good" : "problem"} role="status">${plain(note.text)}</p>`}
    </div>
  </li>`;
}
