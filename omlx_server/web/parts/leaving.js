// What the Escape key does where nothing nearer to the focus has used it, and where the focus goes.
import { useEffect, useRef } from "./ui.js";

/** Calls `act` at Escape, unless it is false. */
export function useEscape(act) {
  const newest = useRef();
  newest.current = act;
  useEffect(() => {
    const look = (event) => {
      if (event.key !== "Escape" || event.isComposing || event.defaultPrevented) return;
      if (document.querySelector("dialog[open]")) return;
      if (newest.current) newest.current();
    };
    document.addEventListener("keydown", look);
    return () => document.removeEventListener("keydown", look);
  }, []);
}

/** A reference to what opens something. It gets the focus back when `open` ends. */
export function useOpener(open) {
  const opener = useRef();
  const wasOpen = useRef(false);
  useEffect(() => {
    if (wasOpen.current && !open && document.activeElement === document.body) {
      opener.current.focus();
    }
    wasOpen.current = open;
  }, [open]);
  return opener;
}
