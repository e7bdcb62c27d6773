// The frame of the page: navigation, the view of the address, and what asks for a key.
import { get } from "./api/client.js";
import { about, enter, entered, missing, remember, remembers, signedIn } from "./api/session.js";
import { signIn } from "./api/sign_in.js";
import { CacheView } from "./cache/view.js";
import { LogView } from "./log/view.js";
import { ModelsView } from "./models/view.js";
import { Icon } from "./parts/icons.js";
import { useSignal } from "./parts/signal.js";
import { html, render, useEffect, useErrorBoundary, useState } from "./parts/ui.js";
import { SecretDialog, SecretForm } from "./parts/secret.js";
import { SettingsView } from "./settings/view.js";
import { TalkView } from "./talk/view.js";

const RETRY_MS = 2000;
const THEME = "omlx.theme";
const NEXT_THEME = { auto: "light", light: "dark", dark: "auto" };
const THEME_ICONS = { auto: "auto", light: "sun", dark: "moon" };
const VIEWS = {
  talk: { name: "Talk", view: TalkView },
  models: { name: "Models", view: ModelsView, admin: true },
  cache: { name: "Memory and cache", short: "Cache", view: CacheView, admin: true },
  log: { name: "Log", view: LogView, admin: true },
  settings: { name: "Settings", view: SettingsView, admin: true },
};

function Page() {
  const { place, id } = useAddress();
  const told = useSignal(about);
  const lost = useAbout();
  const { view, name, admin } = VIEWS[place];
  const closed = admin && told && !told.admin;
  useEffect(() => {
    document.title = `${name} · omlx_server`;
    document.getElementById("main").scrollTop = 0;
  }, [name]);
  return html`<div class="page">
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <${Navigation} place=${place} about=${told} />
    <main id="main" tabindex="-1">
      ${told
        ? html`<${Guarded} key=${place} view=${closed ? Closed : view} admin=${admin} id=${id} />`
        : html`<${Arriving} name=${name} lost=${lost} />`}
    </main>
    <${SecretDialog} />
  </div>`;
}

/** What stands in a view's place until the server has told of itself. */
function Arriving({ name, lost }) {
  if (!lost) return html`<h1 class="unseen">${name}</h1>`;
  return html`<div class="empty away" role="alert">
    <h1>The server can't be reached</h1>
    <p>Is it running? This page tries again every two seconds, and shows ${name} as soon as it
      answers.</p>
  </div>`;
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

/** The view and the id in the fragment of the address: #talk/ID. */
function useAddress() {
  const read = () => {
    const [place, id] = location.hash.slice(1).split("/");
    return { place: place in VIEWS ? place : "talk", id };
  };
  const [address, set] = useState(read);
  useEffect(() => {
    const change = () => set(read());
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);
  return address;
}

/** Asks what this server is and allows, until it tells. Whether it can't be reached. */
function useAbout() {
  const [lost, lose] = useState(false);
  useEffect(() => {
    let timer = 0;
    const ask = () =>
      get("web/about.json").then(
        (told) => {
          lose(false);
          about.set(told);
        },
        () => {
          lose(true);
          timer = setTimeout(ask, RETRY_MS);
        },
      );
    ask();
    return () => clearTimeout(timer);
  }, []);
  return lost;
}

function Navigation({ place, about: told }) {
  return html`<nav class="places" aria-label="Views">
    <p class="brand"><img src=${icon} alt="" width="22" height="22" />omlx_server</p>
    <ul>
      ${Object.entries(VIEWS).map(([key, { name, short, admin }]) => {
        if (admin && told && !told.admin) return null;
        const here = key === place ? "page" : undefined;
        return html`<li key=${key}><a href=${`#${key}`} aria-current=${here} aria-label=${name}>
          <${Icon} name=${key} /><span class="long">${name}</span>
          <span class="short">${short ?? name}</span></a></li>`;
      })}
    </ul>
    <footer>
      <${SignedIn} />
      <${ThemeSwitch} />
      <p class="hint version">${told?.version ?? ""}</p>
      ${told && !told.admin && html`<p class="hint closed">Talk only: admin.enabled is off.</p>`}
    </footer>
  </nav>`;
}

function SignedIn() {
  useSignal(entered);
  if (!signedIn()) return null;
  const leave = () => enter({ key: "", token: "" });
  return html`<div class="signed-in">
    <label class="check"><input type="checkbox" checked=${remembers()}
      onChange=${(event) => remember(event.target.checked)} />Stay signed in</label>
    <button class="quiet" aria-label="Sign out" onClick=${leave}>
      <${Icon} name="out" /><span class="long">Sign out</span></button>
  </div>`;
}

/** Light, dark, or as the system has it. theme.js reads the choice at the next visit. */
function ThemeSwitch() {
  const [theme, set] = useState(document.documentElement.dataset.theme ?? "auto");
  const turn = () => {
    const next = NEXT_THEME[theme];
    if (next === "auto") {
      localStorage.removeItem(THEME);
      delete document.documentElement.dataset.theme;
    } else {
      localStorage.setItem(THEME, next);
      document.documentElement.dataset.theme = next;
    }
    set(next);
  };
  return html`<button class="quiet theme" aria-label=${`Colours: ${theme}`} onClick=${turn}>
    <${Icon} name=${THEME_ICONS[theme]} /><span class="long">Colours: ${theme}</span>
  </button>`;
}

const icon = new URL("icon.svg", import.meta.url).pathname;

/** A view, or in its place the form for the secret that it needs, or what went wrong inside. */
function Guarded({ view: View, admin, id }) {
  const [error, reset] = useErrorBoundary((thrown) => console.error(thrown));
  useSignal(entered);
  const kind = missing(about.value, admin);
  if (kind) return html`<div class="gate"><${SecretForm} key=${kind} kind=${kind} /></div>`;
  if (!error) return html`<${View} id=${id} />`;
  return html`<div class="empty" role="alert">
    <h1>This view has failed</h1>
    <p>${error.message}</p>
    <button onClick=${reset}>Show it again</button>
  </div>`;
}

function Closed() {
  return html`<div class="empty">
    <h1>Not on this server</h1>
    <p>Its settings have <code>admin.enabled = false</code>: this page can only talk.</p>
    <p><a href="#talk">Talk</a></p>
  </div>`;
}

await signIn();
render(html`<${Page} />`, document.getElementById("app"));
