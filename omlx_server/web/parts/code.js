// A block of code or JSON with a button that copies it.
import { colour } from "./colours.js";

const COPIED_MS = 1500;

export function codeBlock(text, language = "", open = false) {
  const box = document.createElement("figure");
  box.className = "code";
  const head = document.createElement("figcaption");
  const name = document.createElement("span");
  name.textContent = language.split(/\s/)[0].slice(0, 40) || "text";
  const button = document.createElement("button");
  button.className = "quiet";
  button.textContent = "Copy";
  button.onclick = async () => {
    const copied = await copy(code.textContent);
    button.textContent = copied ? "Copied" : "Select and copy by hand";
    setTimeout(() => (button.textContent = "Copy"), COPIED_MS);
  };
  head.append(name, button);
  const code = document.createElement("pre");
  code.tabIndex = 0; // it scrolls
  code.setAttribute("aria-label", `${name.textContent} code`);
  code.setAttribute("role", "group");
  code.append(document.createElement("code"));
  box.dataset.language = language.split(/\s/)[0];
  box.append(head, code);
  setCode(box, text, open);
  return box;
}

export const languageOf = (box) => box.dataset.language;

/** Puts other text into a block that `codeBlock` made. `open`: more of it comes. */
export function setCode(box, text, open = false) {
  const code = box.querySelector("code");
  const before = code.textContent;
  if (before && text.startsWith(before)) code.append(text.slice(before.length));
  else if (text !== before) code.textContent = text;
  colour(code, languageOf(box), open);
}

/** Whether the text is on the clipboard now. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

/** Browsers have no clipboard object for pages that came by plain HTTP from another machine. */
function copyBySelection(text) {
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "unseen";
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  return copied;
}

/** JSON with indentation; null for text that is no JSON object or list. */
export function prettyJson(text) {
  if (!/^\s*[[{]/.test(text) || text.length > 1_000_000) return null;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}
