// The list of conversations, and how they come in and go out as files.
import { day } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { useSignal } from "../parts/signal.js";
import { html, useLayoutEffect, useRef, useState } from "../parts/ui.js";
import { asFile, fromFile } from "./conversation.js";
import * as stored from "./stored.js";
import { remove } from "./talk.js";

export function Sidebar({ shown, hide, current }) {
  const heads = useSignal(stored.heads);
  const [problem, setProblem] = useState("");
  const box = useRef();
  const first = useRef();
  useLayoutEffect(() => {
    if (!shown) return undefined;
    const before = document.activeElement;
    first.current.focus();
    const leave = ({ target }) => target.closest(".sidebar, .undo") || hide();
    document.addEventListener("focusin", leave);
    return () => {
      document.removeEventListener("focusin", leave);
      const left = document.activeElement;
      if (left.tabIndex < 0 || box.current?.contains(left)) before.focus();
    };
  }, [shown]);
  return html`<section class=${shown ? "sidebar shown" : "sidebar"} aria-label="Conversations"
    ref=${box}>
    <header class="bar">
      <a class="button wide" href="#talk/new" onClick=${hide}>
        <${Icon} name="plus" />New conversation</a>
      <button class="icon-only hide-button" aria-label="Hide conversations" ref=${first}
        onClick=${hide}>
        <${Icon} name="close" /></button>
    </header>
    <ul class="conversations">
      ${heads.map((head) => html`<${Item} key=${head.id} head=${head} current=${current}
        hide=${hide} />`)}
    </ul>
    ${!heads.length && html`<p class="hint none">No conversations yet.</p>`}
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    <${Files} heads=${heads} tell=${setProblem} />
  </section>`;
}

function Item({ head, current, hide }) {
  const title = head.title || "Untitled";
  const go = async () => {
    await remove(head.id);
    if (head.id === current) location.hash = "#talk";
  };
  return html`<li>
    <a href=${`#talk/${head.id}`} aria-current=${head.id === current ? "page" : undefined}
      title=${day(head.changed)} dir="auto" onClick=${hide}>${title}</a>
    <button class="icon-only" aria-label=${`Delete ${title}`} onClick=${go}>
      <${Icon} name="trash" /></button>
  </li>`;
}

function Files({ heads, tell }) {
  const file = useRef();
  const take = async (event) => {
    const [chosen] = event.target.files;
    event.target.value = "";
    if (!chosen) return;
    try {
      for (const conversation of fromFile(await chosen.text())) await stored.save(conversation);
      tell("");
    } catch (error) {
      tell(error.message);
    }
  };
  return html`<footer class="row">
    <button class="quiet" disabled=${!heads.length} onClick=${download}>
      <${Icon} name="down" />Export</button>
    <button class="quiet" onClick=${() => file.current.click()}>
      <${Icon} name="up" />Import</button>
    <input type="file" hidden accept="application/json,.json" ref=${file} tabindex="-1"
      aria-label="File of conversations" onChange=${take} />
  </footer>`;
}

async function download() {
  const url = URL.createObjectURL(asFile(await stored.loadAll()));
  const link = document.createElement("a");
  link.href = url;
  link.download = `conversations-${new Date().toISOString().slice(0, 10)}.json`;
  link.click();
  URL.revokeObjectURL(url);
}
