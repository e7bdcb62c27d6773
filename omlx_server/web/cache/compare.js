// A prompt against what is cached: which of its blocks are there, and the token where it leaves.
import { post } from "../api/client.js";
import { number, plural, share } from "../parts/format.js";
import { Problem } from "../parts/problem.js";
import { useSignal } from "../parts/signal.js";
import { html, useEffect, useState } from "../parts/ui.js";
import { messagesOf } from "../talk/conversation.js";
import { draft, keepDraft } from "../talk/drafts.js";
import * as stored from "../talk/stored.js";
import { Tokens } from "./tokens.js";

const PLACE = "compare"; // of its drafts

export function Compare({ model }) {
  const heads = useSignal(stored.heads);
  const [source, from] = useState("");
  const [system, setSystem] = useDraft("system");
  const [text, setText] = useDraft("message");
  const [result, tell] = useState(null);
  const [problem, fail] = useState(null);
  const [working, work] = useState(false);
  useEffect(() => void stored.refresh(), []);

  const compare = async (event) => {
    event.preventDefault();
    work(true);
    try {
      const messages = source ? await promptOf(source) : typed(system, text);
      tell(await post("admin/cache/compare", { model, messages }));
      fail(null);
    } catch (error) {
      fail(error);
    }
    work(false);
  };
  return html`<form class="compare" onSubmit=${compare}>
      <label>Prompt
        <select value=${source} onChange=${(event) => from(event.target.value)}>
          <option value="">typed or pasted here</option>
          ${heads.map(({ id, title }) => html`<option key=${id} value=${id}>
            ${title || "Untitled"}</option>`)}
        </select></label>
      ${!source && html`
        <label>System prompt
          <textarea rows="1" dir="auto" value=${system}
            onInput=${(event) => setSystem(event.target.value)}></textarea></label>
        <label>Message
          <textarea rows="3" dir="auto" value=${text}
            onInput=${(event) => setText(event.target.value)}></textarea></label>`}
      <div class="row"><button class="primary" type="submit"
        disabled=${working || (!source && !text)}>
        ${working ? "Comparing" : "Compare"}</button></div>
    </form>
    <${Problem} error=${problem} />
    ${result && html`<${Result} result=${result} />`}`;
}

/** The text of a field, kept until it is emptied. */
function useDraft(field) {
  const [text, set] = useState(() => draft(PLACE, field));
  const change = (words) => {
    set(words);
    keepDraft(PLACE, words, field);
  };
  return [text, change];
}

function typed(system, text) {
  const first = system ? [{ role: "system", content: system }] : [];
  return [...first, { role: "user", content: text }];
}

/** The conversation up to its last question: the prompt of its last answer. */
async function promptOf(id) {
  const conversation = await stored.load(id);
  const asked = conversation.messages.findLastIndex((message) => message.role !== "assistant");
  return messagesOf({ ...conversation, messages: conversation.messages.slice(0, asked + 1) });
}

function Result({ result }) {
  const { prompt_tokens: prompt, cached_tokens: cached, diverges_at: at } = result;
  return html`<div class="result" role="region" aria-label="Comparison">
    <p><strong>${number(cached)}</strong> of ${number(prompt)} tokens would come from the cache
      (${share(cached, prompt)}).${" "}
      ${at !== null
        ? html`It leaves what is cached at token <strong class="at">${number(at)}</strong>.`
        : cached > 0
          ? "It does not leave what is cached."
          : "Nothing that is cached begins like it."}</p>
    <${Strip} result=${result} />
    <${Tokens} result=${result} />
  </div>`;
}

function Strip({ result: { blocks, prompt_tokens: prompt } }) {
  const words = { hot: "in memory", cold: "in the cold tier", none: "not there" };
  const named = blocks.map((block) => ({ ...block, tier: block.tier ?? "none" }));
  const count = (tier) => named.filter((block) => block.tier === tier).length;
  const told = Object.entries(words).filter(([tier]) => count(tier));
  const summary = told.map(([tier, what]) => `${plural(count(tier), "block")} ${what}`).join(", ");
  return html`<div class="strip" role="img" aria-label=${summary}>
      ${named.map(({ start, stop, tier }) => html`<span key=${start} class=${`cell ${tier}`}
        style=${{ flexGrow: stop - start }}
        title=${`Tokens ${start} to ${stop - 1}: ${words[tier]}`}></span>`)}
    </div>
    <p class="hint">${summary}, of a prompt of ${plural(prompt, "token")}</p>`;
}
