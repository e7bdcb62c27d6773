// One message of a conversation: what was said, and below it what can be done with it.
import { askFor } from "../api/session.js";
import { copy, prettyJson } from "../parts/code.js";
import { digits, number, plain, seconds } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { useOpener } from "../parts/leaving.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../parts/ui.js";
import { draft, keepDraft, placeOf } from "./drafts.js";
import { Code, Markdown } from "./text.js";
import { versionOf } from "./versions.js";
import { Waiting, thoughtsInWords, useProgress } from "./waiting.js";

const COPIED_MS = 1500;

export function UserMessage({ message, talk }) {
  const place = placeOf(talk.conversation);
  const field = `edit ${message.id}`;
  const [edited, edit] = useState(() => draft(place, field) && message.id);
  const opener = useOpener(!!edited);
  const leave = () => edit(null);
  const resend = (text) => {
    leave();
    keepDraft(place, "", field);
    talk.resend(message, text);
  };
  return html`<article class="message user" aria-label="You">
    ${message.images?.length > 0 &&
    html`<div class="images">
      ${message.images.map((url, n) => html`<img key=${n} src=${url} alt=${`Image ${n + 1}`} />`)}
    </div>`}
    ${edited === message.id
      ? html`<${Editor} key=${message.id} text=${message.content} place=${place} field=${field}
          busy=${talk.busy} done=${resend} leave=${leave} />`
      : html`<div class="said" dir="auto">${message.content}</div>
          <div class="actions">
            <${Versions} message=${message} talk=${talk} />
            <${CopyButton} text=${message.content} />
            <button class="quiet" ref=${opener} disabled=${talk.busy}
              onClick=${() => edit(message.id)}><${Icon} name="edit" />Edit</button>
          </div>`}
  </article>`;
}

/** Where a message is written anew. Escape leaves it, and keeps what was typed for the next time;
 * Cancel drops that. */
function Editor({ text, place, field, busy, done, leave }) {
  const [value, set] = useState(() => draft(place, field) || text);
  const area = useRef();
  useLayoutEffect(() => {
    area.current.focus();
    area.current.setSelectionRange(value.length, value.length);
  }, []);
  const change = (event) => {
    set(event.target.value);
    keepDraft(place, event.target.value === text ? "" : event.target.value, field);
  };
  const submit = (event) => {
    event.preventDefault();
    if (value.trim() && !busy) done(value);
  };
  const cancel = () => {
    keepDraft(place, "", field);
    leave();
  };
  const keys = (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape") {
      event.preventDefault();
      leave();
    }
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
  };
  return html`<form class="editor" onSubmit=${submit} onKeyDown=${keys}>
    <textarea aria-label="Edit your message" dir="auto" ref=${area} value=${value}
      onInput=${change}></textarea>
    <p class="hint">What stands here now, with all that followed, stays as an earlier version.</p>
    <div class="row">
      <button class="primary" type="submit" disabled=${busy || !value.trim()}>Send again</button>
      <button type="button" onClick=${cancel}>Cancel</button>
    </div>
  </form>`;
}

/** Goes back and forth between the versions of a message. */
function Versions({ message, talk }) {
  const { number: shown, count } = versionOf(message);
  if (count === 1) return null;
  const step = (words, icon, by) => {
    // A disabled button would lose the focus.
    const ends = talk.busy || shown + by < 1 || shown + by > count;
    return html`<button class="quiet icon-only" aria-label=${words} title=${words}
      aria-disabled=${String(ends)} onClick=${() => ends || talk.turn(message, by)}>
      <${Icon} name=${icon} /></button>`;
  };
  return html`<span class="versions" role="group" aria-label="Versions">
    ${step("Earlier version", "left", -1)}
    <span class="count" aria-live="polite">${shown} / ${count}</span>
    ${step("Later version", "right", 1)}
  </span>`;
}

export function ToolMessage({ message }) {
  return html`<article class="message tool" aria-label="Result of a tool">
    <details>
      <summary>Result of <code>${plain(message.name || "a tool")}</code></summary>
      <${Code} text=${prettyJson(message.content) ?? message.content} language="result" />
    </details>
  </article>`;
}

/** An answer. `last` is whether no message follows it. */
export function Answer({ message, talk, last }) {
  const streaming = talk.answering === message;
  useGrowth(talk, streaming);
  const thinking = streaming && !message.content;
  const progress = useProgress(message, thinking);
  const empty = message.error && !message.content; // its error has a button of its own
  const waits = last && message.calls?.length > 0 && !streaming && !talk.busy;
  return html`<article class="message answer" aria-label="Answer" aria-busy=${String(streaming)}>
    ${message.thoughts &&
    html`<${Thoughts} text=${message.thoughts}
      title=${thoughtsInWords(message, thinking, talk.times, progress)} />`}
    <${Body} text=${message.content} streaming=${streaming} />
    ${message.calls?.map((call) => html`<${ToolCall} key=${call.id} call=${call} />`)}
    ${thinking && !message.thoughts && html`<${Waiting} progress=${progress} />`}
    ${streaming && talk.perSecond &&
    html`<p class="figures speed">${digits(talk.perSecond)} tok/s</p>`}
    ${message.error &&
    html`<div class="problem" role="alert">
      <p>${message.error}</p>
      ${empty && html`<${Versions} message=${message} talk=${talk} />`}
      <div class="row">
        ${message.wants !== undefined && html`<button
          onClick=${() => askFor({ code: message.wants })}>Enter it</button>`}
        <button disabled=${talk.busy} onClick=${() => talk.regenerate(message)}>Try again</button>
      </div>
    </div>`}
    ${waits &&
    html`<${ToolResults} key=${message.id} calls=${message.calls} talk=${talk} />`}
    ${!streaming && !empty && html`<${Footer} message=${message} talk=${talk} />`}
  </article>`;
}

/** Draws the component again whenever the answer under way has grown, once a frame. */
function useGrowth(talk, streaming) {
  const [, draw] = useState(0);
  useEffect(() => {
    if (!streaming) return undefined;
    let frame = 0;
    const end = talk.grown.subscribe((count) => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        draw(count);
      });
    });
    return () => {
      cancelAnimationFrame(frame);
      end();
    };
  }, [talk, streaming]);
}

function Body({ text, streaming }) {
  if (!text) return null;
  const json = streaming ? null : prettyJson(text);
  if (json) return html`<${Code} text=${json} language="json" />`;
  return html`<${Markdown} text=${text} streaming=${streaming} />`;
}

function Thoughts({ text, title }) {
  return html`<details class="thoughts">
    <summary>${title}</summary>
    <div class="said" dir="auto">${text}</div>
  </details>`;
}

function ToolCall({ call }) {
  return html`<section class="call" aria-label="Tool call">
    <p>Calls <code>${plain(call.name)}</code></p>
    <${Code} text=${prettyJson(call.arguments) ?? call.arguments} language="json" />
  </section>`;
}

/** The page runs no tools: whoever talks says what they gave. */
function ToolResults({ calls, talk }) {
  const place = placeOf(talk.conversation);
  const field = (call) => `result ${call.id}`;
  const [results, set] = useState(() => calls.map((call) => draft(place, field(call))));
  const change = (index, text) => {
    set(results.with(index, text));
    keepDraft(place, text, field(calls[index]));
  };
  const submit = (event) => {
    event.preventDefault();
    calls.forEach((call) => keepDraft(place, "", field(call)));
    talk.giveResults(calls, results);
  };
  return html`<form class="editor" onSubmit=${submit}>
    ${calls.map(
      (call, index) => html`<label key=${call.id}>
        Result of ${plain(call.name)}
        <textarea rows="2" value=${results[index]}
          onInput=${(event) => change(index, event.target.value)}></textarea>
      </label>`,
    )}
    <div class="row"><button type="submit">Send results</button></div>
  </form>`;
}

function Footer({ message, talk }) {
  return html`<footer>
    <div class="actions">
      <${Versions} message=${message} talk=${talk} />
      <${CopyButton} text=${message.content} />
      <button
        class="quiet"
        disabled=${talk.busy}
        onClick=${() => talk.regenerate(message)}
      >
        <${Icon} name="again" />Regenerate
      </button>
    </div>
    <${Figures} message=${message} />
  </footer>`;
}

const FINISHES = {
  length: "cut at the token limit",
  stopped: "stopped",
  tool_calls: "calls tools",
};

function Figures({ message }) {
  const { usage, finish, error } = message;
  const end = finish || error ? FINISHES[finish] : "unfinished";
  if (!usage) return end ? html`<p class="figures"><span>${end}</span></p>` : null;
  return html`<p class="figures">
    <span title="Tokens of the prompt">${number(usage.prompt)} in</span>
    <span class="cached" title="Of these, found in the prefix cache">
      ${number(usage.cached)} cached
    </span>
    <span title="Tokens of the answer">${number(usage.completion)} out</span>
    <span>first token after ${seconds(usage.ttft)}</span>
    ${usage.perSecond && html`<span>${digits(usage.perSecond)} tok/s</span>`}
    ${end && html`<span>${end}</span>`}
  </p>`;
}

function CopyButton({ text }) {
  const [copied, set] = useState(false);
  const click = async () => {
    set(await copy(text));
    setTimeout(() => set(false), COPIED_MS);
  };
  return html`<button class="quiet" onClick=${click}>
    <${Icon} name=${copied ? "check" : "copy"} />${copied ? "Copied" : "Copy"}
  </button>`;
}
