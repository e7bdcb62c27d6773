// What this tab knows about the server and about who sits here. The API key and the admin token
// are in sessionStorage: they are gone when the tab is closed.
import { Signal } from "../parts/signal.js";

const STORED = { key: "omlx.key", token: "omlx.token" };

/** Which secret has to be entered: "key", "token" or null. */
export const asked = new Signal(null);
/** A count that goes up when a secret was entered: views ask again. */
export const entered = new Signal(0);
/** What /web/about.json told; null until it came. */
export const about = new Signal(null);

export function secret(kind) {
  return sessionStorage.getItem(STORED[kind]) ?? "";
}

export function enter(kind, text) {
  if (text) sessionStorage.setItem(STORED[kind], text);
  else sessionStorage.removeItem(STORED[kind]);
  asked.set(null);
  entered.set(entered.value + 1);
}

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
  asked.set(error.code === "admin_token_needed" ? "token" : "key");
}
