// The colours of code. The highlighter is loaded with the first block that names a language.
import DOMPurify from "../vendor/dompurify-3.4.18.js";

const LONGEST = 50_000;
const CLEAN = { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true };
// While code grows, it is coloured again when a part of it and some letters have come.
const GROWTH = 1.1;
const LETTERS = 40;

let highlighter = null;
const texts = new WeakMap(); // what each element has shown in colours

/** Colours a code element, whose text stays the same. `open`: more text comes. */
export async function colour(code, language, open) {
  if (!language || code.textContent.length > LONGEST) return;
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
