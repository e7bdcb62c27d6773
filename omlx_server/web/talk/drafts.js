// What was typed or attached and not sent yet. Texts are in this browser's localStorage, which is
// written at once; images are too large for it.
import * as stored from "./stored.js";

const STORED = "omlx.drafts.";
const NEW = "new"; // a conversation without messages, whose id lasts no longer than its view
const images = new Map();

/** The name under which the drafts of a conversation are kept. */
export function placeOf({ id, messages }) {
  return messages.length ? id : NEW;
}

export function draft(place, field = "message") {
  return all(place)[field] ?? "";
}

/** Keeps the text of a field; an empty one is forgotten. */
export function keepDraft(place, text, field = "message") {
  const { [field]: _, ...others } = all(place);
  keepTexts(place, text ? { ...others, [field]: text } : others);
}

/** The images of a draft, as far as `loadDraftImages` has loaded them. */
export function draftImages(place) {
  return images.get(place) ?? [];
}

export async function loadDraftImages(place) {
  const urls = await stored.loadImages(place);
  if (!images.has(place)) images.set(place, urls);
  return images.get(place);
}

export function keepDraftImages(place, urls) {
  images.set(place, urls);
  // Where there is no room for them they last as long as the page.
  stored.saveImages(place, urls).catch(() => {});
}

/** Removes the drafts of a conversation and returns them for `putDrafts`. */
export async function takeDrafts(place) {
  const drafts = { texts: all(place), urls: await loadDraftImages(place) };
  putDrafts(place, { texts: {}, urls: [] });
  return drafts;
}

export function putDrafts(place, { texts, urls }) {
  keepTexts(place, texts);
  keepDraftImages(place, urls);
}

function keepTexts(place, texts) {
  try {
    if (Object.keys(texts).length) localStorage.setItem(STORED + place, JSON.stringify(texts));
    else localStorage.removeItem(STORED + place);
  } catch {
    // The storage is full: the text lasts as long as its field.
  }
}

function all(place) {
  try {
    return JSON.parse(localStorage.getItem(STORED + place)) ?? {};
  } catch {
    return {};
  }
}
