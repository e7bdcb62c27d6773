// Where a message is written: text, images, and one button that sends or stops.
import { Icon } from "../parts/icons.js";
import { html, useEffect, useRef, useState } from "../parts/ui.js";
import {
  draft, draftImages, keepDraft, keepDraftImages, loadDraftImages, placeOf,
} from "./drafts.js";
import { ACCEPT, asDataUrl, imageFiles } from "./images.js";
import { GONE_MS } from "./talk.js";

export function Composer({ talk, seesImages, ready }) {
  const place = placeOf(talk.conversation);
  const [text, setText] = useState(() => draft(place));
  const [images, setImages] = useState(() => draftImages(place));
  const [problem, setProblem] = useState("");
  const file = useRef();
  const area = useRef();
  useEffect(() => void loadDraftImages(place).then(setImages, () => {}), []);
  useEffect(() => {
    if (mayTakeFocus()) area.current.focus({ preventScroll: true });
  }, []);
  useEffect(() => {
    // A button that has begun an answer is gone now.
    if (mayTakeFocus() && document.activeElement === document.body) area.current.focus();
  }, [talk.answering]);
  const elsewhere = useElsewhere(talk);
  const canSend = ready && !talk.busy && (text.trim() || images.length);

  const add = async (list) => {
    const files = imageFiles(list);
    if (!files.length || !seesImages) return;
    try {
      const urls = await Promise.all(files.map(asDataUrl));
      attach([...draftImages(place), ...urls]);
      setProblem("");
    } catch (error) {
      setProblem(error.message);
    }
  };
  const send = (event) => {
    event?.preventDefault();
    if (!canSend) return;
    write("");
    attach([]);
    talk.send(text.trim(), images);
  };
  const write = (words) => {
    setText(words);
    keepDraft(place, words);
  };
  const attach = (urls) => {
    setImages(urls);
    keepDraftImages(place, urls);
  };
  const keys = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    send(event);
  };

  return html`<form
    class="composer"
    onSubmit=${send}
    onPaste=${(event) => add(event.clipboardData.files)}
    onDragOver=${(event) => event.preventDefault()}
    onDrop=${(event) => {
      event.preventDefault();
      add(event.dataTransfer.files);
    }}
  >
    ${images.length > 0 &&
    html`<${Attached} images=${images} drop=${(n) => attach(images.toSpliced(n, 1))} />`}
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${elsewhere && html`<p class="hint" role="status">Another tab is getting an answer here.</p>`}
    <div class="field">
      ${seesImages &&
      html`<input type="file" hidden multiple accept=${ACCEPT} ref=${file} tabindex="-1"
          aria-label="Image files"
          onChange=${(event) => {
            add(event.target.files);
            event.target.value = "";
          }} />
        <button type="button" class="icon-only" aria-label="Attach images" title="Attach images"
          onClick=${() => file.current.click()}><${Icon} name="image" /></button>`}
      <textarea aria-label="Message" placeholder="Write a message" rows="1" dir="auto" ref=${area}
        value=${text} onInput=${(event) => write(event.target.value)}
        onKeyDown=${keys}></textarea>
      ${talk.answering
        ? html`<button key="stop" type="button" class="icon-only stop" aria-label="Stop"
            title="Stop" onClick=${() => talk.stop()}><${Icon} name="stop" /></button>`
        : html`<button key="send" type="submit" class="icon-only primary" aria-label="Send"
            title="Send (Enter)" disabled=${!canSend}><${Icon} name="send" /></button>`}
    </div>
  </form>`;
}

/** Whether the focus may move here: not away from an undo, nor to bring up the keyboard of a phone
 * over what one came to read. */
function mayTakeFocus() {
  const onPhone = matchMedia("(pointer: coarse)").matches && navigator.userActivation?.isActive;
  return !onPhone && !document.activeElement?.closest(".undo");
}

/** Whether another tab is getting an answer; looked at again when it could be gone. */
function useElsewhere(talk) {
  const [, look] = useState(0);
  const elsewhere = talk.busyElsewhere;
  const saved = talk.conversation.answering;
  useEffect(() => {
    if (!elsewhere) return undefined;
    const timer = setTimeout(() => look(Date.now()), GONE_MS + 100);
    return () => clearTimeout(timer);
  }, [elsewhere, saved]);
  return elsewhere;
}

function Attached({ images, drop }) {
  return html`<div class="images">
    ${images.map(
      (url, n) => html`<span class="attached" key=${url}>
        <img src=${url} alt=${`Attached image ${n + 1}`} />
        <button type="button" class="icon-only" aria-label=${`Remove image ${n + 1}`}
          onClick=${() => drop(n)}><${Icon} name="close" /></button>
      </span>`,
    )}
  </div>`;
}
