// One conversation that is open in this tab: it sends, streams, stops and saves. It goes on while
// another view or conversation is shown.
import { ApiError, request } from "../api/client.js";
import { events } from "../api/sse.js";
import { Signal } from "../parts/signal.js";
import { bodyOf, id, titleOf, userMessage } from "./conversation.js";
import * as stored from "./stored.js";

const SAVE_MS = 1000;
/** So long after its last save a tab that was getting an answer counts as gone. */
export const GONE_MS = 4000;

export class Talk {
  /** Goes up when messages come or go, or an answer begins or ends. */
  changed = new Signal(0);
  /** Goes up when the answer under way has grown. */
  grown = new Signal(0);
  /** The answer under way; null between answers. */
  answering = null;
  #stopping = null;
  #saved = 0;

  constructor(conversation) {
    this.conversation = conversation;
  }

  get messages() {
    return this.conversation.messages;
  }

  /** Whether another tab is getting an answer here: both would save the conversation. */
  get busyElsewhere() {
    return !this.answering && Date.now() - (this.conversation.answering ?? 0) < GONE_MS;
  }

  /** Whether nothing can be sent now. */
  get busy() {
    return !!this.answering || this.busyElsewhere;
  }

  /** Take in what another tab has saved. */
  replace(conversation) {
    this.conversation = conversation;
    this.#tell();
  }

  /** Change the model or the options; stored with the next message if there is none yet. */
  set(fields) {
    Object.assign(this.conversation, fields);
    this.#tell();
    if (this.messages.length) this.save();
  }

  send(text, images) {
    this.messages.push(userMessage(text, images));
    return this.#answer();
  }

  /** Say something else in place of a message. What followed it is dropped. */
  resend(message, text) {
    const index = this.messages.indexOf(message);
    this.messages.splice(index, Infinity, userMessage(text, message.images));
    return this.#answer();
  }

  /** Answer again what the given answer, or the last one, was an answer to. */
  regenerate(message = this.messages.at(-1)) {
    const index = this.messages.indexOf(message);
    if (message?.role === "assistant") this.messages.splice(index, Infinity);
    return this.#answer();
  }

  /** Send what the tools gave: `results` is a text for each call of the last answer. */
  giveResults(calls, results) {
    calls.forEach((call, index) => {
      const content = results[index] ?? "";
      this.messages.push({ id: id(), role: "tool", call: call.id, name: call.name, content });
    });
    return this.#answer();
  }

  stop() {
    this.#stopping?.abort();
  }

  save(answering = this.answering) {
    this.#saved = performance.now();
    this.conversation.changed = Date.now();
    this.conversation.answering = answering ? Date.now() : 0;
    this.conversation.title ||= titleOf(this.conversation);
    return stored.save(this.conversation);
  }

  async #answer() {
    const answer = { id: id(), role: "assistant", content: "", model: this.conversation.model };
    this.#stopping = new AbortController();
    let body;
    try {
      body = bodyOf(this.conversation);
    } catch (error) {
      answer.error = `Options: ${error.message}`;
    }
    this.messages.push(answer);
    this.answering = answer;
    this.#tell();
    await this.#keep(answer, answer);
    if (body) await this.#stream(answer, body, this.#stopping.signal);
    // Before the answer shows as complete, since the page may be left as soon as it does.
    await this.#keep(answer, null);
    this.answering = this.#stopping = null;
    this.#tell();
  }

  /** Save, or say at the answer that this browser can't. */
  async #keep(answer, answering) {
    try {
      await this.save(answering);
    } catch (error) {
      answer.error ??= `This browser does not keep the conversation: ${error.message}`;
    }
  }

  async #stream(answer, body, signal) {
    const times = { sent: performance.now() };
    try {
      const response = await request("v1/chat/completions", { method: "POST", body, signal });
      for await (const { data } of events(response)) {
        if (data === "[DONE]") break;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new ApiError(500, chunk.error);
        take(answer, chunk, times);
        this.grown.set(this.grown.value + 1);
        if (performance.now() - this.#saved > SAVE_MS) this.save();
      }
      if (!answer.finish) answer.error = "The answer broke off before its end.";
    } catch (error) {
      if (error.name === "AbortError") answer.finish = "stopped";
      else answer.error = error.message;
    }
  }

  #tell() {
    this.changed.set(this.changed.value + 1);
  }
}

/** Adds a chunk of the stream to an answer. */
function take(answer, chunk, times) {
  if (chunk.usage) answer.usage = counted(chunk.usage, times);
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const { content, reasoning_content: thought, tool_calls: calls } = choice.delta ?? {};
  if (content || thought || calls) {
    times.last = performance.now();
    times.first ??= times.last;
  }
  if (content) answer.content += content;
  if (thought) answer.thoughts = (answer.thoughts ?? "") + thought;
  for (const call of calls ?? []) takeCall((answer.calls ??= []), call);
  if (choice.finish_reason) answer.finish = choice.finish_reason;
}

function takeCall(calls, { index, id: given, function: part }) {
  const call = (calls[index] ??= { id: "", name: "", arguments: "" });
  if (given) call.id = given;
  if (part?.name) call.name = part.name;
  call.arguments += part?.arguments ?? "";
}

/** Token counts and times, as they are shown below an answer. Seconds. */
function counted(usage, { sent, first, last }) {
  const completion = usage.completion_tokens;
  const decoding = (last - first) / 1000;
  return {
    prompt: usage.prompt_tokens,
    cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
    completion,
    ttft: first === undefined ? null : (first - sent) / 1000,
    perSecond: completion > 1 && decoding > 0 ? (completion - 1) / decoding : null,
  };
}

const talks = new Map();

/** The open conversation of that id; undefined if it was removed meanwhile. */
export async function open(id) {
  if (talks.has(id)) return talks.get(id);
  const conversation = await stored.load(id);
  return conversation && hold(new Talk(conversation));
}

export function hold(talk) {
  const { id } = talk.conversation;
  if (!talks.has(id)) talks.set(id, talk);
  return talks.get(id);
}

export async function remove(id) {
  talks.get(id)?.stop();
  talks.delete(id);
  await stored.remove(id);
}

stored.changedElsewhere.subscribe(async (id) => {
  const talk = talks.get(id);
  if (!talk || talk.answering) return;
  const conversation = await stored.load(id);
  if (conversation) talk.replace(conversation);
});
