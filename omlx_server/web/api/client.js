// The one place that sends requests to the server, and only to the one this page came from.
import { TOKEN_NEEDED, askFor, credentials } from "./session.js";

const BASE = new URL("../../", import.meta.url);

/** An error that the server told, or status 0: it could not be reached. */
export class ApiError extends Error {
  constructor(status, { message, code, param } = {}) {
    super(message || `the server answered with status ${status}`);
    this.status = status;
    this.code = code ?? null;
    this.param = param ?? null;
  }
}

/** The response of a request that went well. With an `id`, /progress tells of it. Throws ApiError;
 * AbortError when it was stopped. */
export async function request(path, { method = "GET", body, signal, id } = {}) {
  const headers = credentials();
  if (id) headers["x-request-id"] = id;
  if (body !== undefined) headers["content-type"] = "application/json";
  const text = body === undefined ? undefined : JSON.stringify(body);
  let response;
  try {
    response = await fetch(new URL(path, BASE), { method, headers, body: text, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw unreachable();
  }
  if (!response.ok) throw await told(response);
  return response;
}

export const get = (path, options) => json(path, options);
export const post = (path, body, options) => json(path, { ...options, method: "POST", body });
export const patch = (path, body) => json(path, { method: "PATCH", body });

export function unreachable() {
  return new ApiError(0, { message: "The server can't be reached. Is it running?" });
}

async function json(path, options) {
  return (await request(path, options)).json();
}

async function told(response) {
  let details = {};
  try {
    const body = await response.json();
    details = body.error && typeof body.error === "object" ? body.error : {};
  } catch {
    // A proxy's page has no JSON; the status says enough.
  }
  if (response.status !== 401) return new ApiError(response.status, details);
  const wanted = details.code === TOKEN_NEEDED ? "its owner's token" : "one of its keys";
  const error = new ApiError(401, { ...details, message: `The server wants ${wanted} for this.` });
  askFor(error);
  return error;
}
