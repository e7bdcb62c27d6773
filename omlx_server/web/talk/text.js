// Components around elements that are no Preact's: Markdown and code blocks.
import { codeBlock, setCode } from "../parts/code.js";
import { show } from "../parts/markdown.js";
import { html, useEffect, useLayoutEffect, useRef } from "../parts/ui.js";

// While an answer streams, Markdown is drawn for at most a fifth of the time.
const REST = 4;

/** Text as Markdown. While it is `streaming` it may be shown a little late. */
export function Markdown({ text, streaming }) {
  const box = useRef();
  const pace = useRef({ next: 0, timer: 0 });
  Object.assign(pace.current, { text, streaming });
  useLayoutEffect(() => {
    const { current } = pace;
    const draw = () => {
      current.timer = 0;
      const began = performance.now();
      show(box.current, current.text, current.streaming);
      const ended = performance.now();
      current.next = ended + REST * (ended - began);
    };
    const wait = streaming ? current.next - performance.now() : 0;
    if (wait <= 0) {
      clearTimeout(current.timer);
      draw();
    } else {
      current.timer ||= setTimeout(draw, wait);
    }
  }, [text, streaming]);
  useEffect(() => () => clearTimeout(pace.current.timer), []);
  return html`<div class="markdown" ref=${box}></div>`;
}

export function Code({ text, language }) {
  const box = useRef();
  useLayoutEffect(() => {
    if (box.current.firstChild) setCode(box.current.firstChild, text);
    else box.current.append(codeBlock(text, language));
  }, [text, language]);
  return html`<div ref=${box}></div>`;
}
