// The page runs no tools: whoever talks says what they gave.
import { plain } from "../parts/format.js";
import { html, useState } from "../parts/ui.js";
import { draft, keepDraft, placeOf } from "./drafts.js";

export function ToolResults({ calls, talk }) {
  const place = placeOf(talk.conversation);
  const field = (call) => `result ${call.id}`;
  const [results, set] = useState(() => calls.map((call) => draft(place, field(call))));
  const change = (index, text) => {
    set(results.with(index, text));
    keepDraft(place, text, field(calls[index]));
  };
  const submit = (event) => {
    event.preventDefault();
    calls.forEach((call) => keepDraft(place, "", field(call)));
    talk.giveResults(calls, results);
  };
  return html`<form class="editor" onSubmit=${submit}>
    ${calls.map(
      (call, index) => html`<label key=${call.id}>
        Result of ${plain(call.name)}
        <textarea rows="2" value=${results[index]}
          onInput=${(event) => change(index, event.target.value)}></textarea>
      </label>`,
    )}
    <div class="row"><button type="submit">Send results</button></div>
  </form>`;
}
