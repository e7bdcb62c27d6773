// The page runs no tools: whoever talks says what they gave.
import { plain } from "../parts/format.js";
import { html, useState } from "../parts/ui.js";

export function ToolResults({ calls, talk }) {
  const [results, set] = useState(calls.map(() => ""));
  const change = (index, text) => set(results.with(index, text));
  const submit = (event) => {
    event.preventDefault();
    talk.giveResults(calls, results);
  };
  return html`<form class="editor" onSubmit=${submit}>
    ${calls.map(
      (call, index) => html`<label key=${call.id}>
        Result of ${plain(call.name)}
        <textarea rows="2" onInput=${(event) => change(index, event.target.value)}></textarea>
      </label>`,
    )}
    <div class="row"><button type="submit">Send results</button></div>
  </form>`;
}
