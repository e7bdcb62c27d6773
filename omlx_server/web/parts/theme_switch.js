// Light, dark, or as the system has it. theme.js reads the choice at the next visit.
import { Icon } from "./icons.js";
import { html, useState } from "./ui.js";

const STORED = "omlx.theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const ICONS = { auto: "auto", light: "sun", dark: "moon" };

export function ThemeSwitch() {
  const [theme, set] = useState(document.documentElement.dataset.theme ?? "auto");
  const turn = () => {
    const next = NEXT[theme];
    if (next === "auto") {
      localStorage.removeItem(STORED);
      delete document.documentElement.dataset.theme;
    } else {
      localStorage.setItem(STORED, next);
      document.documentElement.dataset.theme = next;
    }
    set(next);
  };
  return html`<button class="quiet theme" aria-label=${`Colours: ${theme}`} onClick=${turn}>
    <${Icon} name=${ICONS[theme]} /><span class="long">Colours: ${theme}</span>
  </button>`;
}
