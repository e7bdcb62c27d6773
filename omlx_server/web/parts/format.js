// Numbers, times and names as people read them.

const UNITS = ["B", "kB", "MB", "GB", "TB"];
const NUMBER = new Intl.NumberFormat("en");
const CLOCK = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const BIDI = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f]/g;

/** Bytes with three digits: "1.25 GB". Decimal units, as the rest of the server has them. */
export function bytes(count) {
  if (count === null || count === undefined) return "–";
  let value = count;
  let unit = 0;
  while (value >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit ? digits(value) : Math.round(value)} ${UNITS[unit]}`;
}

/** A whole number with separators; a dash where there is none. */
export function number(value) {
  return value === null || value === undefined ? "–" : NUMBER.format(value);
}

/** A number with about three digits. */
export function digits(value) {
  if (value === null || value === undefined) return "–";
  return value >= 99.95 ? NUMBER.format(Math.round(value)) : value.toFixed(value >= 9.995 ? 1 : 2);
}

/** Seconds: "12 ms", "0.31 s", "2 min 5 s", "3 h 20 min". */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value > 0 && value < 0.0995) return `${Math.max(1, Math.round(1000 * value))} ms`;
  if (value < 99.5) return `${digits(value)} s`;
  const minutes = Math.floor(value / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(value % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function share(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)} %` : "–";
}

/** The time of day of a unix time in seconds. */
export function clock(at) {
  return CLOCK.format(at * 1000);
}

/** Date and time of milliseconds since 1970. */
export function day(at) {
  return DAY.format(at);
}

/** A name on one line, with marks that would turn or hide its letters made visible. */
export function plain(name) {
  const code = (mark) => `[U+${mark.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}]`;
  return String(name ?? "").replace(BIDI, code).replace(CONTROL, code);
}

export function plural(count, word) {
  return `${number(count)} ${word}${count === 1 ? "" : "s"}`;
}

/** Text that means the same where HTML is read. */
export function escaped(text) {
  const names = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
  return String(text).replace(/[&<>"']/g, (letter) => names[letter]);
}
