// What waits for a restart, and the restart itself where a service manager does it.
import { post } from "../api/client.js";
import { Problem } from "../parts/problem.js";
import { html, useEffect, useState } from "../parts/ui.js";

const LOOK_MS = 2000;
const QUESTION = "Restart the server? Answers that run may finish; until the model is loaded "
  + "again, other requests fail.";

export function Restart({ told, again }) {
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
