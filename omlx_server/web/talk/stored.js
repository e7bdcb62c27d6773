// Conversations in this browser's IndexedDB, and what tells other tabs that one has changed.
import { Signal } from "../parts/signal.js";

const NAME = "omlx_server";
const CHANNEL = "omlx_server.conversations";
const BODIES = "conversations";
const HEADS = "heads";
const DRAFT = "draft ";

/** {id, title, changed} of each conversation, the one changed last first. */
export const heads = new Signal([]);
/** The id of a conversation that another tab has just changed or removed. */
export const changedElsewhere = new Signal(null);

const channel = new BroadcastChannel(CHANNEL);
channel.onmessage = async ({ data }) => {
  await refresh();
  changedElsewhere.set(data);
};

let opened = null;

function database() {
  opened ??= new Promise((resolve, reject) => {
    const opening = indexedDB.open(NAME, 1);
    opening.onupgradeneeded = () => {
      opening.result.createObjectStore(BODIES, { keyPath: "id" });
      opening.result.createObjectStore(HEADS, { keyPath: "id" });
    };
    opening.onsuccess = () => resolve(opening.result);
    opening.onerror = () => reject(opening.error);
  });
  return opened;
}

/** Runs `work` with both stores, and returns the result of the request that it returned. */
async function within(mode, work) {
  const transaction = (await database()).transaction([BODIES, HEADS], mode);
  const request = work(transaction.objectStore(BODIES), transaction.objectStore(HEADS));
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve(request?.result);
    transaction.onerror = () => reject(transaction.error);
    transaction.onabort = () => reject(transaction.error);
  });
}

export async function refresh() {
  const all = await within("readonly", (_, stored) => stored.getAll());
  heads.set(all.sort((a, b) => b.changed - a.changed));
}

export function load(id) {
  return within("readonly", (bodies) => bodies.get(id));
}

export async function loadAll() {
  const all = await within("readonly", (bodies) => bodies.getAll());
  return all.filter(({ messages }) => messages);
}

/** The images of a draft. They are beside the conversations, under an id of their own. */
export async function loadImages(place) {
  return (await within("readonly", (bodies) => bodies.get(DRAFT + place)))?.images ?? [];
}

export function saveImages(place, images) {
  const id = DRAFT + place;
  return within("readwrite", (bodies) => {
    if (images.length) bodies.put({ id, images });
    else bodies.delete(id);
  });
}

export async function save(...conversations) {
  await within("readwrite", (bodies, stored) => {
    for (const conversation of conversations) put(bodies, stored, conversation);
  });
  await announce(conversations[0].id);
}

/** Give a conversation another title. It stays where it is in the list. */
export async function rename(id, title) {
  await within("readwrite", (bodies, stored) => {
    const asked = bodies.get(id);
    asked.onsuccess = () => asked.result && put(bodies, stored, { ...asked.result, title });
  });
  await announce(id);
}

function put(bodies, stored, conversation) {
  const { id, title, changed } = conversation;
  bodies.put(conversation);
  stored.put({ id, title, changed });
}

/** The ids of the conversations whose title or texts, in any version, hold all `words`. */
export async function search(words) {
  const wanted = words.toLowerCase().split(/\s+/);
  const ids = new Set();
  await within("readonly", (bodies) => {
    bodies.openCursor().onsuccess = ({ target: { result: cursor } }) => {
      if (!cursor) return;
      const { id, title, messages } = cursor.value;
      const text = [title, ...textsOf(messages ?? [])].join("\n").toLowerCase();
      if (messages && wanted.every((word) => text.includes(word))) ids.add(id);
      cursor.continue();
    };
  });
  return ids;
}

function textsOf(messages) {
  return messages.flatMap(({ content, earlier = [], later = [] }) => [
    content, ...[...earlier, ...later].flatMap(textsOf),
  ]);
}

export async function remove(id) {
  await within("readwrite", (bodies, stored) => {
    bodies.delete(id);
    stored.delete(id);
  });
  await announce(id);
}

async function announce(id) {
  await refresh();
  channel.postMessage(id);
}
