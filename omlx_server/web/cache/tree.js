// Where each block of the prefix cache stands on the map: a column for its place in the prompt, a
// row for its branch. Pure.

/** Cells {block, row, column, parent}: a cell's first, longest continuation is in its own row;
 * other branches begin rows below. `rows` and `columns` are how many there are. */
export function layOut(blocks, blockTokens) {
  const children = byParent(blocks);
  const size = sizes(blocks, children);
  const cells = new Map();
  let rows = 0;
  let columns = 0;
  // A stack, since a branch can have thousands of blocks: the next row begins at its top.
  const heads = longestFirst(children.get(null) ?? [], size).reverse();
  while (heads.length) {
    const row = rows;
    rows += 1;
    const branches = [];
    for (let block = heads.pop(); block; ) {
      const column = Math.floor(block.start / blockTokens);
      cells.set(block.id, { block, row, column, parent: block.parent });
      columns = Math.max(columns, column + 1);
      const [next, ...others] = longestFirst(children.get(block.id) ?? [], size);
      branches.push(...others.reverse());
      block = next;
    }
    heads.push(...branches);
  }
  return { cells, rows, columns };
}

/** Blocks by the id of their parent; null for those whose parent is not among them. */
function byParent(blocks) {
  const ids = new Set(blocks.map((block) => block.id));
  const found = new Map();
  for (const block of blocks) {
    const parent = ids.has(block.parent) ? block.parent : null;
    if (!found.has(parent)) found.set(parent, []);
    found.get(parent).push(block);
  }
  return found;
}

/** How many blocks each block has below it, itself included. */
function sizes(blocks, children) {
  const size = new Map();
  const last = [...blocks].sort((a, b) => b.start - a.start); // children before their parents
  for (const block of last) {
    const below = children.get(block.id) ?? [];
    size.set(block.id, below.reduce((sum, child) => sum + (size.get(child.id) ?? 0), 1));
  }
  return size;
}

function longestFirst(blocks, size) {
  return [...blocks].sort((a, b) => size.get(b.id) - size.get(a.id));
}

/** The cell to which an arrow key leads from `cell`; undefined where there is none. */
export function beside(cells, cell, key) {
  const all = [...cells.values()];
  if (key === "ArrowLeft") return cells.get(cell.parent);
  if (key === "ArrowRight") return all.find((one) => one.parent === cell.block.id);
  const step = key === "ArrowUp" ? -1 : 1;
  const nearest = (a, b) => Math.abs(a.column - cell.column) - Math.abs(b.column - cell.column);
  return all.filter((one) => one.row === cell.row + step).sort(nearest)[0];
}
