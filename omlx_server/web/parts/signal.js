// A value that tells its listeners when it changes.
import { useEffect, useState } from "./ui.js";

export class Signal {
  #listeners = new Set();

  constructor(value) {
    this.value = value;
  }

  set(value) {
    this.value = value;
    for (const listener of [...this.#listeners]) listener(value);
  }

  /** Calls `listener` at each change. Returns what ends that. */
  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}

/** The value of a signal; the component is drawn again when it changes. */
export function useSignal(signal) {
  const [, draw] = useState(0);
  const drawn = signal.value; // it may change before the effect runs
  useEffect(() => {
    const again = () => draw((count) => count + 1);
    const end = signal.subscribe(again);
    if (signal.value !== drawn) again();
    return end;
  }, [signal]);
  return drawn;
}
