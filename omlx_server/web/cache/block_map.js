// The blocks of a model's prefix cache as a map: a square for each, a row for each branch.
import { get } from "../api/client.js";
import { bytes, number, plural, seconds } from "../parts/format.js";
import { Problem } from "../parts/problem.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../parts/ui.js";
import { beside, layOut } from "./tree.js";

const PAUSE_MS = 3000;
const [LEAST, MOST, ROW] = [4, 14, 16]; // pixels of a column, and of a row
const AGES = [[10, 1], [60, 0.85], [600, 0.65], [3600, 0.5], [Infinity, 0.35]];

export function BlockMap({ model, change }) {
  const { told, problem, again } = useBlocks(model, change);
  const [id, choose] = useState(null);
  const tree = useMemo(() => layOut(told?.blocks ?? [], told?.block_tokens || 1), [told]);
  if (problem) return html`<${Problem} error=${problem} again=${again} />`;
  if (!told) return html`<div class="map-place"></div>`;
  if (!told.blocks.length) {
    return html`<p class="empty">No blocks yet. A prompt of ${number(told.block_tokens)} tokens
      or more leaves some.</p>`;
  }
  const cell = tree.cells.get(id) ?? tree.cells.values().next().value;
  return html`<div class="map-place">
    <${Drawing} tree=${tree} chosen=${cell} choose=${choose} />
    <p class="detail" aria-live="polite">${describe(cell.block, told.block_tokens)}</p>
    <${Legend} />
    ${told.left_out > 0 &&
    html`<p class="hint">${plural(told.left_out, "block")} used longer ago are not shown.</p>`}
  </div>`;
}

/** The blocks, asked for again when the counters of the cache have changed, every few seconds at
 * most. */
function useBlocks(model, change) {
  const [told, set] = useState(null);
  const [problem, fail] = useState(null);
  const next = useRef(0);
  const ask = () => {
    next.current = performance.now() + PAUSE_MS;
    return get(`admin/cache?model=${encodeURIComponent(model)}`).then((answer) => {
      set(answer);
      fail(null);
    }, fail);
  };
  useEffect(() => {
    const timer = setTimeout(ask, Math.max(0, next.current - performance.now()));
    return () => clearTimeout(timer);
  }, [model, change]);
  return { told, problem, again: ask };
}

function Drawing({ tree, chosen, choose }) {
  const box = useRef();
  const [width, measure] = useState(600);
  useLayoutEffect(() => {
    const watching = new ResizeObserver(([{ contentRect }]) => measure(contentRect.width));
    watching.observe(box.current);
    return () => watching.disconnect();
  }, []);
  const step = Math.max(LEAST, Math.min(MOST, Math.floor(width / tree.columns)));
  const cells = [...tree.cells.values()];
  const point = ({ target }) => target.dataset?.id && choose(target.dataset.id);
  const keys = (event) => {
    if (!event.key.startsWith("Arrow")) return;
    event.preventDefault();
    const next = beside(tree.cells, chosen, event.key);
    if (next) choose(next.block.id);
  };
  return html`<div class="map" ref=${box} tabindex="0" role="group" onKeyDown=${keys}
    aria-label="Blocks. Arrow keys go from block to block.">
    <svg width=${tree.columns * step} height=${tree.rows * ROW} role="img"
      aria-label=${`${plural(cells.length, "block")} in ${plural(tree.rows, "row")}`}
      onPointerOver=${point}>
      ${cells.map((cell) => html`<${Cell} key=${cell.block.id} cell=${cell} step=${step}
        parent=${tree.cells.get(cell.parent)} chosen=${cell === chosen} />`)}
    </svg>
  </div>`;
}

function Cell({ cell: { block, row, column }, step, parent, chosen }) {
  const [x, y] = [column * step, row * ROW];
  const gap = step > 6 ? 2 : 1;
  const branches = parent && parent.row !== row;
  const marks = [block.pinned && "pinned", block.in_use && "busy", chosen && "chosen"];
  const classes = [block.tier, ...marks];
  return html`<g class=${classes.filter(Boolean).join(" ")}>
    ${branches && html`<path class="branch" d=${branch(parent, x, y, step)} />`}
    <rect class="block" x=${x + 0.5} y=${y + 2.5} width=${step - gap} height=${ROW - 5} rx="1.5"
      fill-opacity=${block.tier === "hot" ? opacity(block.idle_seconds) : 1} data-id=${block.id} />
    ${block.checkpoint && html`<circle cx=${x + (step - gap) / 2 + 0.5} cy=${y + 8} r="1.5" />`}
    ${block.pinned && html`<rect class="pin" x=${x} y=${y} width=${step - gap + 1} height="2" />`}
  </g>`;
}

/** A line from the end of the parent's square down to the row of the branch. */
function branch(parent, x, y, step) {
  const from = parent.column * step + step - 1;
  return `M${from} ${parent.row * ROW + ROW - 3}V${y + 8}H${Math.max(x, from)}`;
}

function opacity(idle) {
  return AGES.find(([seconds]) => (idle ?? 0) <= seconds)[1];
}

function describe(block, blockTokens) {
  const idle = block.idle_seconds;
  const words = [
    `Tokens ${number(block.start)} to ${number(block.stop - 1)}`,
    bytes(block.bytes),
    block.tier === "hot" ? "in memory" : "in the cold tier",
    block.in_use && "in use",
    block.pinned && "pinned",
    block.checkpoint && "with a checkpoint",
    block.stop - block.start < blockTokens && "not full",
    idle !== null && !block.in_use && `used ${seconds(idle)} ago`,
  ];
  return words.filter(Boolean).join(" · ");
}

function Legend() {
  const entries = [["hot", "in memory, paler the longer unused"], ["cold", "cold tier"],
    ["busy", "in use"], ["pinned", "pinned"], ["mark", "checkpoint"]];
  return html`<ul class="map-legend">
    ${entries.map(([name, words]) => html`<li key=${name}>
      <span class=${`sign ${name}`}></span>${words}</li>`)}
  </ul>`;
}
