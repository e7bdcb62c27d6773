// Asks for the API key or the admin token when the server wants one.
import { asked, enter, linkProblem, remember, secret } from "../api/session.js";
import { useSignal } from "./signal.js";
import { html, useLayoutEffect, useRef } from "./ui.js";

const WORDS = {
  key: {
    title: "API key",
    label: "Key of this server",
    why: "This server answers only requests with one of its keys (auth.api_keys).",
  },
  token: {
    title: "Admin token",
    label: "Token of this server's owner",
    why: html`It is on the server's machine in <code>~/.config/omlx_server/admin-token</code>,
      or was given to the server as <code>OMLX_ADMIN_TOKEN</code>.`,
  },
};

export function SecretDialog() {
  const kind = useSignal(asked);
  return kind && html`<${Dialog} key=${kind} kind=${kind} />`;
}

function Dialog({ kind }) {
  const dialog = useRef();
  useLayoutEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} aria-labelledby="secret-title" onClose=${() => asked.set(null)}>
    <${SecretForm} kind=${kind} leave=${() => dialog.current.close()} />
  </dialog>`;
}

/** A form for a secret. `leave`, if it is given, closes it without one. */
export function SecretForm({ kind, leave }) {
  const { title, label, why } = WORDS[kind];
  const was = secret(kind);
  const link = useSignal(linkProblem);
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    enter({ [kind]: form.get("secret").trim() });
    if (form.has("stay")) remember(true);
  };
  return html`<form class="secret" onSubmit=${submit}>
      <h1 id="secret-title">${title}</h1>
      ${was && html`<p class="problem" role="alert">The server does not take this ${kind}.</p>`}
      ${link && html`<p class="problem" role="alert">${link}</p>`}
      <p>${why}</p>
      <p><code>omlx-server status</code>, in a terminal there, prints a link that signs you in.</p>
      <label>
        ${label}
        <input name="secret" type="password" autocomplete="off" required autofocus />
      </label>
      <label class="check"><input type="checkbox" name="stay" />Stay signed in</label>
      <p class="hint">Sent to this server only, and kept until its tabs are closed, or in this
        browser if you stay signed in.</p>
      <div class="row">
        <button class="primary" type="submit">Enter</button>
        ${leave && html`<button type="button" onClick=${leave}>Not now</button>`}
      </div>
    </form>`;
}
