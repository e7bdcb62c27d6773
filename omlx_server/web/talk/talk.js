// One conversation that is open in this tab: it sends, streams, stops and saves. It goes on while
// another view or conversation is shown.
import { ApiError, request } from "../api/client.js";
import { events } from "../api/sse.js";
import { Signal } from "../parts/signal.js";
import { bodyOf, id, titleOf, userMessage } from "./conversation.js";
import { putDrafts, takeDrafts } from "./drafts.js";
import * as stored from "./stored.js";
import { addVersion, turnVersion } from "./versions.js";

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
  /** Tokens a second of that answer; null until there are some. */
  perSecond = null;
  /** Whether it was deleted: what still streams is not saved then. */
  deleted = false;
  /** When the answer under way was sent for, and what came of it first and last. */
  times = {};
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
    return this.#answer(this.messages.length, userMessage(text, images));
  }

  /** Say something else in place of a message, which stays as an earlier version. */
  resend(message, text) {
    const index = this.messages.indexOf(message);
    return this.#answer(index, userMessage(text, message.images));
  }

  /** Answer again what the given answer was an answer to; it stays as an earlier version. */
  regenerate(message) {
    return this.#answer(this.messages.indexOf(message));
  }

  /** Show the version of a message before (-1) or after (1) this one, with what followed it. */
  turn(message, step) {
    turnVersion(this.messages, this.messages.indexOf(message), step);
    this.#tell();
    return this.save();
  }

  /** Send what the tools gave: `results` is a text for each call of the last answer. */
  giveResults(calls, results) {
    const messages = calls.map((call, index) => {
      const content = results[index] ?? "";
      return { id: id(), role: "tool", call: call.id, name: call.name, content };
    });
    return this.#answer(this.messages.length, ...messages);
  }

  stop() {
    this.#stopping?.abort();
  }

  async save(answering = this.answering) {
    if (this.deleted) return;
    this.#saved = performance.now();
    this.conversation.answering = answering ? Date.now() : 0;
    this.conversation.title ||= titleOf(this.conversation);
    await stored.save(this.conversation);
  }

  /** Puts messages and an answer to them in place of what stands from `index` on. */
  async #answer(index, ...messages) {
    const answer = { id: id(), role: "assistant", content: "", model: this.conversation.model };
    this.#stopping = new AbortController();
    addVersion(this.messages, index, [...messages, answer]);
    let body;
    try {
      body = bodyOf(this.conversation);
    } catch (error) {
      answer.error = `Options: ${error.message}`;
    }
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
    this.conversation.changed = Date.now();
    try {
      await this.save(answering);
    } catch (error) {
      answer.error ??= `This browser does not keep the conversation: ${error.message}`;
    }
  }

  async #stream(answer, body, signal) {
    const times = (this.times = { sent: performance.now(), chunks: 0 });
    this.perSecond = null;
    try {
      const options = { method: "POST", body, signal, id: answer.id };
      const response = await request("v1/chat/completions", options);
      for await (const { data } of events(response)) {
        if (data === "[DONE]") break;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new ApiError(500, chunk.error);
        take(answer, chunk, times);
        this.perSecond = speed(times.chunks, times); // a chunk is a token, but for few
        this.grown.set(this.grown.value + 1);
        if (performance.now() - this.#saved > SAVE_MS) this.save();
      }
      if (!answer.finish) answer.error = "The answer broke off before its end.";
    } catch (error) {
      if (error.name === "AbortError") answer.finish = "stopped";
      else answer.error = error.message;
      if (error.status === 401) answer.wants = error.code ?? "";
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
    times.chunks += 1;
  }
  if (thought) times.thought ??= times.last;
  if ((content || calls) && times.thought) times.said ??= times.last;
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

/** Tokens a second since the first one; null while there are too few. */
function speed(tokens, { first, last }) {
  return tokens > 1 && last > first ? ((tokens - 1) * 1000) / (last - first) : null;
}

/** Token counts and times, as they are shown below an answer. Seconds. */
function counted(usage, times) {
  const { sent, first, last, thought, said = last } = times;
  const completion = usage.completion_tokens;
  return {
    prompt: usage.prompt_tokens,
    cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
    completion,
    ttft: first === undefined ? null : (first - sent) / 1000,
    thought: usage.completion_tokens_details?.reasoning_tokens ?? null,
    thoughtSeconds: thought === undefined ? null : (said - thought) / 1000,
    perSecond: speed(completion, times),
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

/** The conversations that were deleted since the page was loaded, the last one last. */
export const bin = new Signal([]);

/** Delete a conversation; `restore` brings it back until the page is left. */
export async function remove(id) {
  const talk = await open(id);
  if (!talk) return;
  talk.deleted = true;
  talk.stop();
  talks.delete(id);
  const drafts = await takeDrafts(id);
  await stored.remove(id);
  bin.set([...bin.value, { talk, drafts }]);
}

export function rename(id, title) {
  const talk = talks.get(id);
  if (talk) talk.conversation.title = title;
  return stored.rename(id, title);
}

/** Bring back what was deleted last, and return its id. */
export async function restore() {
  const { talk, drafts } = bin.value.at(-1);
  const { id } = talk.conversation;
  bin.set(bin.value.slice(0, -1));
  talk.deleted = false;
  putDrafts(id, drafts);
  talks.set(id, talk);
  await stored.save(talk.conversation);
  return id;
}

stored.changedElsewhere.subscribe(async (id) => {
  const talk = talks.get(id);
  const conversation = talk && (await stored.load(id));
  if (!conversation) return;
  if (talk.answering) talk.conversation.title = conversation.title;
  else talk.replace(conversation);
});
