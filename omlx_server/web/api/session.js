// What this tab knows about the server and about who sits here. The API key and the admin token
// are in sessionStorage, and open tabs give them to new ones: they are gone when the last is
// closed. Only if one wants to stay signed in, localStorage has them too.
import { Signal } from "../parts/signal.js";

/** The code of a 401 that the admin token would have spared. */
export const TOKEN_NEEDED = "admin_token_needed";

const STORED = { key: "omlx.key", token: "omlx.token" };

/** Which secret has to be entered: "key", "token" or null. */
export const asked = new Signal(null);
/** A count that goes up when a secret was entered: views ask again. */
export const entered = new Signal(0);
/** What /web/about.json told; null until it came. */
export const about = new Signal(null);
/** Why the link that was followed has not signed in. */
export const linkProblem = new Signal("");

const tabs = new BroadcastChannel("omlx_server.session");
tabs.onmessage = ({ data }) => {
  const isNew = Object.entries(data ?? {}).some(([kind, text]) => secret(kind) !== text);
  if (isNew) take(data);
  if (!data && signedIn()) tabs.postMessage(held()); // another tab asks
};

export function secret(kind) {
  return sessionStorage.getItem(STORED[kind]) ?? "";
}

export function signedIn() {
  return !!(secret("key") || secret("token"));
}

/** Use these secrets, {key, token}, in all tabs; an empty one is forgotten. */
export function enter(secrets) {
  take(secrets);
  tabs.postMessage(secrets);
}

/** Whether this browser keeps the secrets when its tabs are closed. */
export function remembers() {
  return Object.values(STORED).some((name) => localStorage.getItem(name));
}

export function remember(wanted) {
  const secrets = held();
  for (const [kind, name] of Object.entries(STORED)) {
    if (wanted && secrets[kind]) localStorage.setItem(name, secrets[kind]);
    else localStorage.removeItem(name);
  }
  enter(secrets);
}

function held() {
  return { key: secret("key"), token: secret("token") };
}

function take(secrets) {
  const places = remembers() ? [sessionStorage, localStorage] : [sessionStorage];
  for (const [kind, text] of Object.entries(secrets)) {
    for (const place of places) {
      if (text) place.setItem(STORED[kind], text);
      else place.removeItem(STORED[kind]);
    }
  }
  asked.set(null);
  entered.set(entered.value + 1);
}

for (const name of Object.values(STORED)) {
  const kept = localStorage.getItem(name);
  if (kept && !sessionStorage.getItem(name)) sessionStorage.setItem(name, kept);
}
if (!signedIn()) tabs.postMessage(null);

/** The headers that carry what was entered. */
export function credentials() {
  const headers = {};
  const [key, token] = [secret("key"), secret("token")];
  if (key) headers.authorization = `Bearer ${key}`;
  if (token) headers["x-admin-token"] = token;
  return headers;
}

/** What has to be entered before the server is asked for what owners may see (`admin`), or for
 * anything: "token", "key" or null. */
export function missing(told, admin) {
  if (secret("token")) return null;
  if (admin && told.needs_token) return "token";
  return told.needs_key && !secret("key") ? "key" : null;
}

/** Ask for what a 401 says is missing. */
export function askFor(error) {
  asked.set(error.code === TOKEN_NEEDED ? "token" : "key");
}
