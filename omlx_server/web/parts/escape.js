// What the Escape key does where nothing nearer to the focus has used it.
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
