// Formulas in Markdown, as MathML. Temml, which makes it of TeX, is loaded with the first one.
import DOMPurify from "../vendor/dompurify-3.4.18.js";
import { escaped } from "./format.js";

const LONGEST = 10_000;
const MOST_KEPT = 500;
const MOST_IN_A_BLOCK = 2000; // thousands in one paragraph take the browser seconds
const CLOSING = { $$: "$$", "\\[": "\\]" };
// A price is none: the second sign of "$5 and $10" stands behind a blank and before a digit.
const INLINE = new RegExp(
  [
    /\$\$(?:\\[^]|[^\\$`])+\$\$/,
    /\\\((?:(?!\\[([])[^])+?\\\)/,
    /\\\[(?:(?!\\[([])[^])+?\\\]/,
    /\$(?![\s$])(?:\\[^]|[^\\$`])*(?<!\s)\$(?=(?:th|st|nd|rd|s)\b|[^\w$]|$)/,
  ]
    .map(({ source }) => `^${source}`)
    .join("|"),
);
const CLEAN = {
  IN_PLACE: true,
  USE_PROFILES: { mathMl: true },
  ADD_TAGS: ["span"],
  ADD_ATTR: ["class", "form", "style"],
  FORBID_ATTR: ["href", "id"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
};

/** Marked's extensions that leave each formula as text in an element, for `typeset`. */
export const formulas = [
  {
    name: "formulas",
    level: "block",
    start: (text) => text.search(/\n {0,3}(?:\$\$|\\\[)/),
    tokenizer: formulaBlock,
    renderer: ({ raw, whole }) => `<p>${whole ? placeOf(raw.trim()) : escaped(raw)}</p>`,
  },
  {
    name: "formula",
    level: "inline",
    start: (text) => text.search(/\$|\\[([]/),
    tokenizer(text, tokens) {
      if (/[\w$]$/.test(tokens.at(-1)?.raw.at(-1) ?? "")) return undefined;
      const raw = INLINE.exec(text)?.[0];
      return raw && { type: "formula", raw };
    },
    renderer: ({ raw }) => placeOf(raw),
  },
];

/** A formula on lines of its own, or the beginning of one. It ends before an empty line. */
function formulaBlock(text) {
  const [lead, sign] = /^ {0,3}(\$\$|\\\[)/.exec(text) ?? [];
  if (!sign) return undefined;
  const end = text.search(/\n[ \t]*(?:\n|$)/);
  const paragraph = end < 0 ? text : text.slice(0, end);
  const close = paragraph.indexOf(CLOSING[sign], lead.length);
  // Until its end is there it is text, without a meaning of its signs in Markdown.
  if (close < 0) return { type: "formulas", raw: paragraph, whole: false };
  if (!paragraph.slice(lead.length, close).trim()) return undefined;
  if (/^[ \t]*\S/.test(paragraph.slice(close + 2))) return undefined;
  return { type: "formulas", raw: paragraph.slice(0, close + 2), whole: true };
}

const placeOf = (raw) => `<code class="math">${escaped(raw)}</code>`;

let temml = null;
const made = new Map();

/** Puts MathML in the place of each formula in `box`. What is no TeX stays as it was written. */
export async function typeset(box) {
  const places = [...box.querySelectorAll("code.math")].slice(0, MOST_IN_A_BLOCK);
  if (!places.length) return;
  if (!temml) await load();
  for (const place of places) {
    const formula = formulaOf(place.textContent);
    if (formula) place.replaceWith(formula.cloneNode(true));
  }
  // What scrolls has to be reached with the keyboard.
  if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
}

async function load() {
  const [{ default: loaded }, style] = await Promise.all([
    import("../vendor/temml-0.13.5.js"),
    fetch(new URL("../vendor/temml-0.13.5.css", import.meta.url)).then((file) => file.text()),
  ]);
  if (temml) return;
  temml = loaded;
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(style.replace(/@font-face\s*{[^}]*}/, "")); // the policy allows no fonts
  document.adoptedStyleSheets.push(sheet);
}

/** The element of a formula; null for what is no TeX, or too long. */
function formulaOf(raw) {
  if (made.has(raw)) return made.get(raw);
  if (made.size >= MOST_KEPT) made.clear();
  made.set(raw, mathOf(raw));
  return made.get(raw);
}

function mathOf(raw) {
  const edge = /^\$(?!\$)/.test(raw) ? 1 : 2;
  if (raw.length > LONGEST) return null;
  const box = document.createElement("span");
  try {
    temml.render(raw.slice(edge, -edge), box, {
      displayMode: /^(?:\$\$|\\\[)/.test(raw),
      throwOnError: true,
      wrap: "tex",
      trust: false, // no links, images, classes or styles
      maxSize: [30, 400],
      // Its own has a style attribute, which the policy bans.
      macros: { "\\pmb": "\\boldsymbol{#1}" },
    });
    return DOMPurify.sanitize(box, CLEAN).firstElementChild;
  } catch {
    return null;
  }
}
