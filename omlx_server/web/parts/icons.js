// The page's own icons, drawn in the colour of the text beside them.
import { html } from "./ui.js";

const PATHS = {
  talk: "M4 5h16v11H9l-5 4z",
  models: "M4 7l8-4 8 4-8 4zM4 12l8 4 8-4M4 17l8 4 8-4",
  cache: "M4 4h6v6H4zM14 4h6v6h-6zM14 14h6v6h-6zM4 14h6v6H4z",
  log: "M4 6h16M4 12h16M4 18h10",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4",
  send: "M12 20V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M8 8h11v12H8zM5 16V4h11",
  check: "M5 13l4 4L19 7",
  edit: "M4 20l1-5L16 4l4 4L9 19z",
  again: "M19 12a7 7 0 1 1-2-5l2 2M19 4v5h-5",
  trash: "M5 7h14M9 7V4h6v3M7 7l1 13h8l1-13",
  plus: "M12 5v14M5 12h14",
  image: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15.5 9h.01",
  close: "M6 6l12 12M18 6L6 18",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  list: "M4 6h16M4 12h16M4 18h16",
  options: "M4 8h10M18 8h2M4 16h2M10 16h10M16 6v4M8 14v4",
  sun:
    "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 3v2M12 19v2M3 12h2" +
    "M19 12h2M5.6 5.6L7 7M17 17l1.4 1.4M5.6 18.4L7 17M17 7l1.4-1.4",
  moon: "M19 14a8 8 0 0 1-9-9 8 8 0 1 0 9 9z",
  auto: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
  end: "M12 4v15M6 13l6 6 6-6",
  down: "M12 4v12M6 11l6 6 6-6M5 20h14",
  out: "M10 4H5v16h5M10 12h10M16 8l4 4-4 4",
  up: "M12 20V8M6 13l6-6 6 6M5 4h14",
  pin: "M9 4h6l-1 6 3 3v2H7v-2l3-3zM12 15v6",
};

/** An icon without a name of its own: the button or link around it has one. */
export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
    <path d=${PATHS[name]} />
  </svg>`;
}
