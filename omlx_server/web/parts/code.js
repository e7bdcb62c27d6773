// A block of code or JSON, in colours, with a button that copies it. The highlighter is loaded with
// the first block that names a language.
import DOMPurify from "../vendor/dompurify-3.4.18.js";

const COPIED_MS = 1500;
// Some grammars take time by the square of a line: a minute for 50,000 letters of base64.
const LONGEST = 20_000;
const LONG_LINE = /.{501}/;
const CLEAN = { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true };
// While code grows, it is coloured again when a part of it and some letters have come.
const GROWTH = 1.1;
const LETTERS = 40;

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

let highlighter = null;
const texts = new WeakMap(); // what each element has shown in colours

/** Colours a code element, whose text stays the same. `open`: more text comes. */
async function colour(code, language, open) {
  if (!language || isLong(code.textContent)) return;
  highlighter ??= (await import("../vendor/highlight-11.12.0.js")).default;
  const text = code.textContent;
  const before = texts.get(code) ?? "";
  if (text === before || !highlighter.getLanguage(language)) return;
  const grew = before && text.startsWith(before);
  if (open && grew && text.length < before.length * GROWTH + LETTERS) return;
  const { value } = highlighter.highlight(text, { language, ignoreIllegals: true });
  const coloured = DOMPurify.sanitize(value, CLEAN);
  if (coloured.textContent !== text) return;
  code.replaceChildren(coloured);
  texts.set(code, text);
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

const isLong = (text) => text.length > LONGEST || LONG_LINE.test(text);
