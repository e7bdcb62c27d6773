// A conversation as plain data, what the server gets of it, and its form as a file.
import { foreignConversations } from "./imports.js";

export const TITLE = 60;
const LAST_MS = 8.64e15; // of a Date
const FORMAT = "omlx_server conversations 1";
const ROLES = ["user", "assistant", "tool"];
const TEXTS = ["role", "content", "thoughts", "error", "finish", "model", "name", "call"];
const OPTIONS = "omlx.options";

/** A conversation without messages. Its options are those that were chosen last. */
export function newConversation(model) {
  let options = {};
  try {
    options = JSON.parse(localStorage.getItem(OPTIONS)) ?? {};
  } catch {
    // What is stored can't be read: a new conversation has no options then.
  }
  return { id: id(), title: "", changed: Date.now(), model, options, messages: [] };
}

/** Use these options for new conversations, but for the extra fields, which are about one. */
export function rememberOptions({ extra: _, ...options }) {
  localStorage.setItem(OPTIONS, JSON.stringify(options));
}

export function id() {
  // randomUUID is there on secure origins only, and a server may be called by plain HTTP.
  const random = crypto.getRandomValues(new Uint8Array(12));
  return [...random].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function userMessage(text, images) {
  return { id: id(), role: "user", content: text, images };
}

export function titleOf(conversation) {
  const first = conversation.messages.find((message) => message.role === "user");
  const words = (first?.content || (first?.images?.length ? "Image" : "")).replace(/\s+/g, " ");
  return words.trim().slice(0, TITLE);
}

/** The body of the chat completion that continues a conversation.
 * Throws SyntaxError where `extra` does. */
export function bodyOf(conversation) {
  const { options } = conversation;
  return {
    model: conversation.model,
    messages: messagesOf(conversation),
    stream: true,
    stream_options: { include_usage: true },
    ...numbers(options),
    ...(options.effort ? { reasoning_effort: options.effort } : {}),
    ...extra(options.extra),
  };
}

/** The messages as the API takes them. An answer without text or calls is left out. */
export function messagesOf({ options, messages }) {
  const system = options.system ? [{ role: "system", content: options.system }] : [];
  return [...system, ...messages.filter(says).map(wire)];
}

/** The extra fields that one has typed. Throws SyntaxError for what is no JSON object. */
export function extra(text) {
  if (!text?.trim()) return {};
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new SyntaxError(`more fields of the request are no JSON: ${error.message}`);
  }
  if (!value || typeof value !== "object" || Array.isArray(value)) {
    throw new SyntaxError("more fields of the request must be a JSON object");
  }
  return value;
}

function numbers(options) {
  const names = ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens"];
  const given = names.filter((name) => options[name] !== undefined && options[name] !== "");
  return Object.fromEntries(given.map((name) => [name, Number(options[name])]));
}

function says(message) {
  return message.role !== "assistant" || message.content || message.calls?.length;
}

function wire(message) {
  if (message.role === "tool") {
    return { role: "tool", tool_call_id: message.call, content: message.content };
  }
  if (message.role === "user") return { role: "user", content: parts(message) };
  const calls = message.calls?.map(({ id, name, arguments: text }) => ({
    id,
    type: "function",
    function: { name, arguments: text },
  }));
  const called = calls?.length ? { tool_calls: calls } : {};
  return { role: "assistant", content: message.content, ...called };
}

function parts({ content, images }) {
  if (!images?.length) return content;
  const shown = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return [...shown, ...(content ? [{ type: "text", text: content }] : [])];
}

export function asFile(conversations) {
  const text = JSON.stringify({ format: FORMAT, conversations }, null, 1);
  return new Blob([text], { type: "application/json" });
}

/** The conversations of a file of this page, ChatGPT or Open WebUI, each with a new id. Throws
 * Error for what is no such file. */
export function fromFile(text) {
  let read;
  try {
    read = JSON.parse(text);
  } catch {
    throw new Error("This file is no JSON.");
  }
  const ours = read?.format === FORMAT && Array.isArray(read.conversations);
  const conversations = ours ? read.conversations : foreignConversations(read);
  if (!conversations) {
    throw new Error("This file holds no conversations of this page, ChatGPT or Open WebUI.");
  }
  return conversations.map(checked);
}

function checked(given) {
  return {
    id: id(),
    title: String(given?.title ?? "").slice(0, TITLE),
    changed: Math.abs(given?.changed) <= LAST_MS ? given.changed : Date.now(),
    answering: 0,
    model: String(given?.model ?? ""),
    options: ofType(given?.options, ["string", "number"]),
    messages: sound(given?.messages),
  };
}

function sound(messages) {
  const given = Array.isArray(messages) ? messages : [];
  const isSound = (one) => ROLES.includes(one?.role) && typeof one.content === "string";
  return given.filter(isSound).map(message);
}

/** A message of a file: what is known of messages, and of its type. */
function message(given) {
  const texts = ofType(given, ["string"], TEXTS);
  const usage = given.usage ? { usage: ofType(given.usage, ["number"]) } : {};
  const versions = { earlier: tails(given.earlier), later: tails(given.later) };
  return { ...texts, ...usage, ...versions, id: id(), images: images(given), calls: calls(given) };
}

function tails(given) {
  return Array.isArray(given) ? given.map(sound).filter((tail) => tail.length) : [];
}

function ofType(given, types, names = Object.keys(given ?? {})) {
  const sound = names.filter((name) => types.includes(typeof given[name]));
  return Object.fromEntries(sound.map((name) => [name, given[name]]));
}

function images({ images: given }) {
  if (!Array.isArray(given)) return [];
  return given.filter((url) => typeof url === "string" && url.startsWith("data:image/"));
}

function calls({ calls: given }) {
  if (!Array.isArray(given)) return [];
  return given.map((call) => ({
    id: String(call?.id ?? ""),
    name: String(call?.name ?? ""),
    arguments: String(call?.arguments ?? ""),
  }));
}
