// The view in which one talks with a model: conversations at the side, one of them open.
import { useAnswer } from "../api/live.js";
import { useEscape } from "../parts/leaving.js";
import { Icon } from "../parts/icons.js";
import { plain } from "../parts/format.js";
import { Problem } from "../parts/problem.js";
import { useSignal } from "../parts/signal.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../parts/ui.js";
import { Composer } from "./composer.js";
import { newConversation } from "./conversation.js";
import { takesImages } from "./images.js";
import { Answer, ToolMessage, UserMessage } from "./message.js";
import { Options } from "./options.js";
import { Sidebar } from "./sidebar.js";
import * as stored from "./stored.js";
import { Talk, bin, hold, open, restore } from "./talk.js";

const LAST_MODEL = "omlx.model";
const NEAR = 80; // pixels from the end within which the view follows a stream

export function TalkView({ id }) {
  const { models, problem, again } = useModels();
  const talk = useTalk(id, models);
  const [listed, list] = useState(false);
  const hide = () => list(false);
  useEscape(listed ? hide : () => talk?.stop());
  useEffect(() => void stored.refresh(), []);
  return html`<div class="talk">
    <h1 class="unseen">Talk</h1>
    <${Sidebar} shown=${listed} hide=${hide} current=${talk?.conversation.id} />
    ${listed && html`<div class="scrim" onClick=${hide}></div>`}
    ${talk
      ? html`<${Open} key=${talk.conversation.id} talk=${talk} models=${models} problem=${problem}
          again=${again} list=${() => list(true)} listed=${listed} />`
      : html`<section class="open"></section>`}
    <${Undo} hide=${hide} />
  </div>`;
}

/** The models that may be talked with, asked for again when a key was entered. */
function useModels() {
  const { told, problem, again } = useAnswer("v1/models");
  const models = useMemo(() => told && told.data.filter(talks), [told]);
  return { models, problem, again };
}

/** Whether a model makes text: embedding models do not. */
function talks({ architecture }) {
  return architecture?.output_modalities?.includes("text") ?? true;
}

/** The open conversation of the address; a new one where the address names none. */
function useTalk(id, models) {
  const [talk, set] = useState(null);
  useEffect(() => {
    let gone = false;
    const show = async () => {
      const found = (id && (await open(id))) || new Talk(newConversation(""));
      if (!gone) set(found);
    };
    show();
    return () => (gone = true);
  }, [id]);
  useEffect(() => {
    if (!talk || !models?.length) return;
    const names = models.map((model) => model.id);
    const last = localStorage.getItem(LAST_MODEL);
    if (names.includes(talk.conversation.model)) return;
    talk.set({ model: names.includes(last) ? last : names[0] });
  }, [talk, models]);
  return talk;
}

function Open({ talk, models, problem, again, list, listed }) {
  useSignal(talk.changed);
  const [optionsShown, showOptions] = useState(false);
  const { conversation } = talk;
  const model = models?.find((one) => one.id === conversation.model);
  useEffect(() => {
    // The address names a conversation as soon as there is something to come back to.
    if (!conversation.messages.length) return;
    hold(talk);
    location.replace(`#talk/${conversation.id}`);
  }, [talk, conversation.messages.length > 0]);
  const choose = (name) => {
    localStorage.setItem(LAST_MODEL, name);
    talk.set({ model: name });
  };
  return html`<section class="open" aria-label="Conversation">
    <header class="bar">
      <button class="icon-only list-button" aria-label="Conversations"
        aria-expanded=${String(listed)} onClick=${list}><${Icon} name="list" /></button>
      <${ModelChoice} models=${models} chosen=${conversation.model} choose=${choose} />
      <button class="quiet" aria-expanded=${String(optionsShown)} aria-controls="talk-options"
        onClick=${() => showOptions(!optionsShown)}><${Icon} name="options" />Options</button>
    </header>
    ${optionsShown && html`<${Options} talk=${talk} model=${model} />`}
    <${Problem} error=${problem} again=${again} />
    <${Messages} talk=${talk} hasModel=${!!model} models=${models} />
    <p class="unseen" role="status">${talk.answering ? "Answering" : ""}</p>
    <${Composer} talk=${talk} seesImages=${takesImages(model)} ready=${!!model} />
  </section>`;
}

function ModelChoice({ models, chosen, choose }) {
  if (models === null) return html`<span class="choice hint">Asking for models</span>`;
  if (!models.length) return html`<span class="choice hint">No models yet</span>`;
  return html`<select class="choice" aria-label="Model" value=${chosen}
    onChange=${(event) => choose(event.target.value)}>
    ${models.map(({ id }) => html`<option key=${id} value=${id}>${plain(id)}</option>`)}
  </select>`;
}

function Messages({ talk, models, hasModel }) {
  const box = useRef();
  const [away, toEnd] = useFollowing(box, talk);
  const { messages } = talk;
  return html`<div class="messages" ref=${box} tabindex="0" role="region" aria-label="Messages">
    <div class="column">
      ${messages.length === 0 && html`<${Empty} models=${models} hasModel=${hasModel} />`}
      ${messages.map((message, index) => {
        const props = { key: index, message, talk, last: index === messages.length - 1 };
        if (message.role === "user") return html`<${UserMessage} ...${props} />`;
        if (message.role === "tool") return html`<${ToolMessage} ...${props} />`;
        return html`<${Answer} ...${props} />`;
      })}
    </div>
    ${away && html`<button class="to-end" onClick=${toEnd}>
      <${Icon} name="end" />To the end</button>`}
  </div>`;
}

/** Keeps the end of the messages in view while they grow, unless one has scrolled up. Returns
 * whether one has, and what goes back to the end. */
function useFollowing(box, talk) {
  const [away, set] = useState(false);
  useLayoutEffect(() => {
    const element = box.current;
    let follows = true;
    let last = 0;
    const look = () => {
      // The end may have moved away since the last scroll; only a scroll up leaves it.
      const { scrollTop } = element;
      if (element.scrollHeight - scrollTop - element.clientHeight < NEAR) follows = true;
      else if (scrollTop < last) follows = false;
      last = scrollTop;
      set(!follows);
    };
    const follow = () => {
      const edits = element.querySelector(".user .editor:focus-within");
      if (follows && !edits) element.scrollTop = element.scrollHeight;
    };
    const growth = new ResizeObserver(follow);
    growth.observe(element.firstElementChild);
    growth.observe(element);
    element.addEventListener("scroll", look, { passive: true });
    const sent = talk.changed.subscribe(() => {
      if (talk.answering) follows = true;
    });
    return () => {
      growth.disconnect();
      element.removeEventListener("scroll", look);
      sent();
    };
  }, [talk]);
  const toEnd = () => {
    box.current.focus(); // the button goes
    box.current.scrollTop = box.current.scrollHeight;
  };
  return [away, toEnd];
}

function Empty({ models, hasModel }) {
  if (models && !models.length) {
    return html`<div class="empty">
      <h2>No model here yet</h2>
      <p>Get one in <a href="#models">Models</a>, or with <code>omlx-server pull NAME</code>.</p>
    </div>`;
  }
  return html`<div class="empty">
    <h2>${hasModel ? "What shall we talk about?" : " "}</h2>
    <p>Conversations stay in this browser.</p>
  </div>`;
}

/** Tells of the conversation that was deleted last, and brings it back. */
function Undo({ hide }) {
  const deleted = useSignal(bin).at(-1);
  const button = useRef();
  useEffect(() => button.current?.focus(), [deleted]);
  if (!deleted) return null;
  const undo = async () => {
    const id = await restore();
    hide();
    location.hash = `#talk/${id}`;
  };
  return html`<p class="undo" role="status">
    <span>Deleted: <bdi>${deleted.talk.conversation.title || "Untitled"}</bdi></span>
    <button ref=${button} onClick=${undo}>Undo</button>
    <button class="icon-only" aria-label="Dismiss" title="Delete for good"
      onClick=${() => bin.set([])}><${Icon} name="close" /></button>
  </p>`;
}
