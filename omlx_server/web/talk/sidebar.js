// The list of conversations, and how they come in and go out as files.
import { day, plural } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { useOpener } from "../parts/leaving.js";
import { useSignal } from "../parts/signal.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../parts/ui.js";
import { TITLE, asFile, fromFile } from "./conversation.js";
import * as stored from "./stored.js";
import { remove, rename } from "./talk.js";

const MONTH = new Intl.DateTimeFormat("en", { month: "long", year: "numeric" });
const SEARCH_MS = 150;

export function Sidebar({ shown, hide, current }) {
  const heads = useSignal(stored.heads);
  const [words, search] = useState("");
  const hits = useSearch(words.trim(), heads);
  const shownHeads = hits ? heads.filter(({ id }) => hits.has(id)) : heads;
  const [outcome, tell] = useState({});
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
    ${heads.length > 0 && html`<input type="search" class="search" placeholder="Search"
      aria-label="Search conversations" value=${words}
      onInput=${(event) => search(event.target.value)} />`}
    <div class="conversations">
      ${groups(shownHeads).map(([name, inGroup]) => html`<section key=${name}>
        <h2>${name}</h2>
        <ul>${inGroup.map((head) => html`<${Item} key=${head.id} head=${head} current=${current}
          hide=${hide} />`)}</ul>
      </section>`)}
    </div>
    ${!shownHeads.length && html`<p class="hint none" role="status">
      ${heads.length ? "No conversation has these words." : "No conversations yet."}</p>`}
    ${outcome.problem && html`<p class="problem" role="alert">${outcome.problem}</p>`}
    ${outcome.done && html`<p class="hint" role="status">${outcome.done}</p>`}
    <${Files} heads=${heads} tell=${tell} />
  </section>`;
}

/** The ids of the conversations with these words, as a set; null without words. */
function useSearch(words, heads) {
  const [hits, set] = useState(null);
  useEffect(() => {
    let gone = false;
    const look = async () => {
      const ids = words ? await stored.search(words) : null;
      if (!gone) set(ids);
    };
    const timer = setTimeout(look, words ? SEARCH_MS : 0);
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [words, heads]);
  return hits;
}

/** Conversations, newest first, by the day on which they changed last: [name, heads] of each. */
function groups(heads) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  const daysAgo = (days) => new Date(midnight).setDate(new Date(midnight).getDate() - days);
  const nameOf = ({ changed }) => {
    if (changed >= midnight) return "Today";
    if (changed >= daysAgo(1)) return "Yesterday";
    return changed >= daysAgo(7) ? "Previous 7 days" : MONTH.format(changed);
  };
  const byName = new Map();
  for (const head of heads) byName.set(nameOf(head), [...(byName.get(nameOf(head)) ?? []), head]);
  return [...byName];
}

function Item({ head, current, hide }) {
  const title = head.title || "Untitled";
  const [renamed, edit] = useState(false);
  const opener = useOpener(renamed);
  const go = async () => {
    await remove(head.id);
    if (head.id === current) location.hash = "#talk";
  };
  if (renamed) return html`<li><${Title} head=${head} leave=${() => edit(false)} /></li>`;
  return html`<li>
    <a href=${`#talk/${head.id}`} aria-current=${head.id === current ? "page" : undefined}
      title=${day(head.changed)} dir="auto" onClick=${hide}>${title}</a>
    <button class="icon-only" aria-label=${`Rename ${title}`} ref=${opener}
      onClick=${() => edit(true)}><${Icon} name="edit" /></button>
    <button class="icon-only" aria-label=${`Delete ${title}`} onClick=${go}>
      <${Icon} name="trash" /></button>
  </li>`;
}

/** The field for another title. Escape leaves it; Enter, or a click elsewhere, takes the title. */
function Title({ head, leave }) {
  const field = useRef();
  useLayoutEffect(() => {
    field.current.focus();
    field.current.select();
  }, []);
  const take = () => {
    const title = field.current.value.trim();
    if (title && title !== head.title) rename(head.id, title);
    leave();
  };
  const keys = (event) => {
    if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
    event.preventDefault();
    if (event.key === "Escape") field.current.value = head.title;
    field.current.blur();
  };
  return html`<input aria-label="Title" dir="auto" maxlength=${TITLE} value=${head.title}
    ref=${field} onKeyDown=${keys} onBlur=${take} />`;
}

function Files({ heads, tell }) {
  const file = useRef();
  const take = async (event) => {
    const [chosen] = event.target.files;
    event.target.value = "";
    if (!chosen) return;
    try {
      const conversations = fromFile(await chosen.text());
      if (conversations.length) await stored.save(...conversations);
      tell({ done: `${plural(conversations.length, "conversation")} imported.` });
    } catch (error) {
      tell({ problem: error.message });
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
