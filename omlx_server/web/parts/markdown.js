// What a model writes, as Markdown. HTML in it is shown as the text that it is: it is escaped
// before it becomes Markdown's output, and that output is cleaned again by DOMPurify.
import DOMPurify from "../vendor/dompurify-3.4.18.js";
import { Marked } from "../vendor/marked-18.2.1.js";
import { codeBlock, languageOf, setCode } from "./code.js";
import { escaped } from "./format.js";
import { formulas, typeset } from "./math.js";

const LONGEST = 100_000;
const SHOWN_PLAIN = 200_000;
const LINKS = /^(https?:|mailto:)/i;
const CLEAN = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li",
    "ol", "p", "pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["align", "class", "href", "start", "title"],
  ADD_URI_SAFE_ATTR: ["align", "start"], // no addresses: LINKS is not for them
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: LINKS,
  RETURN_DOM_FRAGMENT: true,
};

const marked = new Marked({
  gfm: true,
  breaks: false,
  extensions: formulas,
  renderer: {
    html: ({ text, block }) => (block ? `<p>${escaped(text)}</p>` : escaped(text)),
    image: ({ href, text }) => `${escaped(text || "image")} (${escaped(href)})`,
    link({ href, tokens, raw }) {
      if (!LINKS.test(href)) return escaped(raw);
      return `<a href="${escaped(href)}">${this.parser.parseInline(tokens)}</a>`;
    },
    checkbox: ({ checked }) => `<span class="box">${checked ? "☑" : "☐"}</span> `,
  },
});

/** Shows `text` in `element`. Blocks that stay the same keep their elements: nothing above the end
 * of a stream moves, and a selection lasts. `open`: more text comes. */
export function show(element, text, open = false) {
  const blocks = blocksOf(text);
  for (const [index, block] of blocks.entries()) {
    block.open = open && index === blocks.length - 1;
    const there = element.children[index];
    if (there && stays(there, block)) continue;
    const made = elementOf(block, there);
    made.omlxBlock = block; // the block that it shows
    if (there) there.replaceWith(made);
    else element.append(made);
    typeset(made);
  }
  while (element.children.length > blocks.length) element.lastElementChild.remove();
}

/** Whether an element shows this block, or less of the same code: it shows all of it now. */
function stays(there, block) {
  const { type, lang, raw, open } = there.omlxBlock;
  const same = raw.trimEnd() === block.raw.trimEnd();
  if (type !== "code" || block.type !== "code" || lang !== block.lang) return same;
  if (same && open === block.open) return true;
  setCode(there, block.text, block.open);
  there.omlxBlock = block;
  return true;
}

function blocksOf(text) {
  if (text.length > LONGEST) return [{ type: "plain", raw: text }];
  try {
    return inOrder(marked.lexer(text)).filter(({ type }) => type !== "space" && type !== "def");
  } catch {
    return [{ type: "plain", raw: text }]; // nested deeper than marked can follow
  }
}

/** These blocks with their headings below the page's own, none of which skips a level. */
function inOrder(blocks) {
  let level = 1;
  marked.walkTokens(blocks, (token) => {
    if (token.type !== "heading") return;
    level = Math.min(token.depth + 1, level + 1, 6);
    token.depth = level;
  });
  return blocks;
}

/** The element of a block, which takes the place of `before`. */
function elementOf(block, before) {
  if (block.type === "plain") return plainText(block.raw);
  if (block.type === "code") return codeBlock(block.text, block.lang, block.open);
  const box = document.createElement("div");
  box.className = "block";
  box.dir = "auto";
  try {
    box.append(DOMPurify.sanitize(marked.parser([block]), CLEAN));
  } catch {
    box.textContent = block.raw;
  }
  takeCode(box, before, block.open);
  for (const link of box.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  // What scrolls has to be reached with the keyboard.
  if (box.querySelector("table")) box.tabIndex = 0;
  return box;
}

/** Shows the code within a block, such as a list, in the figures of `before` where these fit: their
 * colours stay. */
function takeCode(box, before, open) {
  const figures = [...(before?.querySelectorAll("figure.code") ?? [])];
  const codes = [...box.querySelectorAll("pre > code")];
  for (const [index, { className, textContent: text, parentElement }] of codes.entries()) {
    const language = className.replace(/^language-/, "");
    const grows = open && index === codes.length - 1;
    const figure = figures[index];
    if (figure && languageOf(figure) === language) {
      setCode(figure, text, grows);
      parentElement.replaceWith(figure);
    } else parentElement.replaceWith(codeBlock(text, language, grows));
  }
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
