// Conversations in the exports of other programs, as plain data that `fromFile` checks.

/** The conversations of ChatGPT's conversations.json or Open WebUI's list of chats; else null. */
export function foreignConversations(read) {
  if (!Array.isArray(read) || !read.length) return null;
  if (read.every((one) => one?.mapping)) return read.map(fromChatGpt);
  return read.every((one) => one?.chat) ? read.map(fromOpenWebUi) : null;
}

function fromChatGpt({ title, create_time, update_time, mapping, current_node }) {
  const nodes = Object.entries(mapping).map(([id, { parent, children, message }]) => {
    return [id, { parent, children: children ?? [], message: chatGptMessage(message) }];
  });
  const messages = messagesOfTree(new Map(nodes), current_node);
  return { title, changed: 1000 * (update_time ?? create_time), messages };
}

/** What people said and read; null for what tools, plug-ins and hidden prompts said. */
function chatGptMessage(given) {
  const { author, content, metadata } = given ?? {};
  const isShown = ["user", "assistant"].includes(author?.role) && Array.isArray(content?.parts);
  if (!isShown || metadata?.is_visually_hidden_from_conversation) return null;
  const inWords = (part) => `[${part?.content_type ?? "attachment"}]`;
  const parts = content.parts.map((part) => (typeof part === "string" ? part : inWords(part)));
  const text = parts.join("\n\n");
  return text ? { role: author.role, content: text, model: metadata?.model_slug } : null;
}

function fromOpenWebUi({ title, updated_at, chat }) {
  const { history, messages, models, params, system } = chat;
  const nodes = Object.entries(history?.messages ?? {}).map(([id, given]) => {
    const { parentId: parent, childrenIds: children } = given;
    return [id, { parent, children: children ?? [], message: openWebUiMessage(given) }];
  });
  const tree = messagesOfTree(new Map(nodes), history?.currentId);
  return {
    title: title ?? chat.title,
    changed: 1000 * updated_at || chat.timestamp,
    model: models?.[0],
    options: { system: params?.system ?? system },
    messages: tree.length ? tree : (messages ?? []).map(openWebUiMessage),
  };
}

// No part of it passes the next opening: a long text of openings without an end takes no minutes.
const REASONING = new RegExp(
  [
    /<details type="reasoning"[^<>]*>\s*<summary>[^<]*<\/summary>/,
    /((?:(?!<details type="reasoning")[^])*?)<\/details>\s*/,
  ]
    .map(({ source }) => source)
    .join(""),
  "g",
);

/** A message whose thoughts are apart, which stand in its text as HTML. */
function openWebUiMessage({ role, content, model, files }) {
  const text = String(content ?? "");
  const images = (files ?? []).filter(({ type }) => type === "image").map(({ url }) => url);
  if (role !== "assistant") return { role, content: text, images };
  const thoughts = [...text.matchAll(REASONING)].map(([, quoted]) => plainText(quoted));
  return { role, content: text.replace(REASONING, ""), model, thoughts: thoughts.join("\n") };
}

/** The text of a quotation in Markdown whose marks are HTML's. */
function plainText(quoted) {
  const parsed = new DOMParser().parseFromString(quoted, "text/html");
  return parsed.body.textContent.trim().replace(/^> ?/gm, "");
}

/** The messages from the roots to `current`, with the other branches as their versions. */
function messagesOfTree(nodes, current) {
  const shown = new Set();
  for (let id = current; nodes.has(id) && !shown.has(id); id = nodes.get(id).parent) shown.add(id);
  const roots = [...nodes.keys()].filter((id) => !nodes.has(nodes.get(id).parent));
  return tailOf(roots, nodes, shown, new Set());
}

/** The messages that begin with one of `ids`: one that is shown, or else the last. */
function tailOf(ids, nodes, shown, visited) {
  const tail = [];
  for (let next = nearest(ids, nodes, visited); next.length; ) {
    const at = next.findLastIndex((id) => shown.has(id));
    const [chosen] = next.splice(at, 1);
    const versions = next.map((id) => versionOf(id, nodes, shown, visited));
    const count = at < 0 ? versions.length : at;
    const [earlier, later] = [versions.slice(0, count), versions.slice(count)];
    const { message, children } = nodes.get(chosen);
    tail.push({ ...message, earlier, later });
    next = nearest(children, nodes, visited);
  }
  return tail;
}

function versionOf(id, nodes, shown, visited) {
  const { message, children } = nodes.get(id);
  return [message, ...tailOf(children, nodes, shown, visited)];
}

/** The next nodes with a message at or below `ids`, in order. None is visited twice. */
function nearest(ids, nodes, visited) {
  const [left, reached] = [[...ids].reverse(), []];
  while (left.length) {
    const id = left.pop();
    const node = nodes.get(id);
    if (!node || visited.has(id)) continue;
    visited.add(id);
    if (node.message) reached.push(id);
    else left.push(...[...node.children].reverse());
  }
  return reached;
}
