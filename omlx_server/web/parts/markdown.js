// What a model writes, as Markdown. HTML in it is shown as the text that it is: it is escaped
// before it becomes Markdown's output, and that output is cleaned again by DOMPurify.
import DOMPurify from "../vendor/dompurify-3.4.18.js";
import { Marked } from "../vendor/marked-18.2.1.js";
import { codeBlock, setCode } from "./code.js";

const LONGEST = 100_000;
const SHOWN_PLAIN = 200_000;
const LINKS = /^(https?:|mailto:)/i;
const CLEAN = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li",
    "ol", "p", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["align", "href", "start", "title"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: LINKS,
  RETURN_DOM_FRAGMENT: true,
};

const marked = new Marked({
  gfm: true,
  breaks: false,
  renderer: {
    html: ({ text, block }) => (block ? `<p>${escaped(text)}</p>` : escaped(text)),
    image: ({ href, text }) => `${escaped(text || "image")} (${escaped(href)})`,
    link({ href, tokens, raw }) {
      if (!LINKS.test(href)) return escaped(raw);
      return `<a href="${escaped(href)}">${this.parser.parseInline(tokens)}</a>`;
    },
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

/** Shows `text` in `element`. Blocks that stay the same keep their elements: nothing above the end
 * of a stream moves, and a selection lasts. */
export function show(element, text) {
  const blocks = blocksOf(text);
  let index = 0;
  for (const block of blocks) {
    const there = element.children[index];
    if (!there) element.append(shown(block));
    else if (there.omlxBlock.raw !== block.raw && !grows(there, block)) {
      there.replaceWith(shown(block));
    }
    index += 1;
  }
  while (element.children.length > index) element.lastElementChild.remove();
}

/** The element of a block, which knows the block that it shows. */
function shown(block) {
  const made = elementOf(block);
  made.omlxBlock = block;
  return made;
}

/** Whether an element shows the same code block, which has only grown; it shows all of it now. */
function grows(there, block) {
  const { type, lang } = there.omlxBlock;
  if (type !== "code" || block.type !== "code" || lang !== block.lang) return false;
  setCode(there, block.text);
  there.omlxBlock = block;
  return true;
}

function blocksOf(text) {
  if (text.length > LONGEST) return [{ type: "plain", raw: text }];
  try {
    return marked.lexer(text).filter(({ type }) => type !== "space" && type !== "def");
  } catch {
    return [{ type: "plain", raw: text }]; // nested deeper than marked can follow
  }
}

function elementOf(block) {
  if (block.type === "plain") return plainText(block.raw);
  if (block.type === "code") return codeBlock(block.text, block.lang ?? "");
  const box = document.createElement("div");
  box.className = block.type === "table" ? "block wide" : "block";
  box.dir = "auto";
  try {
    box.append(DOMPurify.sanitize(marked.parser([block]), CLEAN));
  } catch {
    box.textContent = block.raw;
  }
  for (const code of box.querySelectorAll("pre > code")) {
    code.parentElement.replaceWith(codeBlock(code.textContent, ""));
  }
  for (const link of box.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  // What scrolls has to be reached with the keyboard.
  if (block.type === "table") box.tabIndex = 0;
  return box;
}

/** Text that is too long for Markdown: its beginning, and a button for the rest. */
function plainText(text) {
  const box = document.createElement("div");
  const body = document.createElement("pre");
  body.className = "plain";
  body.dir = "auto";
  body.textContent = text.slice(0, SHOWN_PLAIN);
  box.append(body);
  if (text.length > SHOWN_PLAIN) {
    const rest = document.createElement("button");
    rest.className = "quiet";
    rest.textContent = `Show ${(text.length - SHOWN_PLAIN).toLocaleString("en")} more characters`;
    rest.onclick = () => {
      body.textContent = text;
      rest.remove();
    };
    box.append(rest);
  }
  return box;
}

function escaped(text) {
  const names = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
  return String(text).replace(/[&<>"']/g, (letter) => names[letter]);
}
