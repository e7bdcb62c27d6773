// What the server is doing, told once a second: asked only while a view that shows it is open and
// the tab can be seen.
import { Signal, useSignal } from "../parts/signal.js";
import { useCallback, useEffect, useRef, useState } from "../parts/ui.js";
import { get, request } from "./client.js";
import { about, entered, missing } from "./session.js";
import { events } from "./sse.js";

const HISTORY_SECONDS = 600;
const DONE = 200;
const RETRY_MS = 2000;

/** The newest state; null until one came. */
export const state = new Signal(null);
/** The last requests that ended, newest first. */
export const done = new Signal([]);
/** Samples of the memory of the last minutes, oldest first. */
export const memory = new Signal([]);
/** Why nothing comes, as an ApiError; null while it does. */
export const problem = new Signal(null);

let watchers = 0;
let running = null;

/** Keeps the live state coming while a component is shown. */
export function useLive() {
  useEffect(() => {
    watchers += 1;
    turn();
    return () => {
      watchers -= 1;
      turn();
    };
  }, []);
}

document.addEventListener("visibilitychange", turn);
entered.subscribe(() => {
  running?.abort();
  running = null;
  turn();
});

function turn() {
  const wanted = watchers > 0 && !document.hidden && !missing(about.value ?? {}, true);
  if (wanted && !running) {
    running = new AbortController();
    follow(running.signal);
  } else if (!wanted && running) {
    running.abort();
    running = null;
  }
}

async function follow(signal) {
  while (!signal.aborted) {
    try {
      await begin(signal);
      const response = await request("admin/live", { signal });
      for await (const { event, data } of events(response)) {
        if (signal.aborted) return;
        if (event === "state") take(JSON.parse(data));
      }
    } catch (error) {
      if (signal.aborted) return;
      problem.set(error);
      if (error.status === 401 || error.status === 403 || error.status === 404) return;
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

async function begin(signal) {
  const [told, requests] = await Promise.all([
    get("admin/memory", { signal }),
    get("admin/requests", { signal }),
  ]);
  memory.set(told.history);
  done.set(requests.done);
}

function take(told) {
  problem.set(null);
  if (told.memory) {
    const oldest = told.memory.at - HISTORY_SECONDS;
    const kept = memory.value.filter(({ at }) => at > oldest && at < told.memory.at);
    memory.set([...kept, told.memory]);
  }
  if (told.done?.length) {
    const ids = new Set(told.done.map((one) => one.id));
    const earlier = done.value.filter((one) => !ids.has(one.id));
    const newest = [...told.done].sort((a, b) => b.at - a.at);
    done.set([...newest, ...earlier].slice(0, DONE));
  }
  state.set(told);
}

/** What the server tells at `path`, asked `delay` milliseconds after a change of it, of `changes`
 * or of who sits here: what is `told`, null before it is, the last `problem`, and what asks
 * `again`. */
export function useAnswer(path, { delay = 0, changes = [] } = {}) {
  const [answer, set] = useState({});
  const count = useSignal(entered);
  const newest = useRef();
  newest.current = path;
  const again = useCallback(async ({ quiet } = {}) => {
    const [told, problem] = await get(path).then((body) => [body], (error) => [null, error]);
    if (newest.current !== path || (problem && quiet)) return;
    set((before) => ({ path, problem, told: told ?? (before.path === path ? before.told : null) }));
  }, [path]);
  useEffect(() => {
    const timer = path && setTimeout(again, delay);
    return () => clearTimeout(timer);
  }, [path, count, ...changes]);
  const { told = null, problem = null } = answer.path === path ? answer : {};
  return { told, problem, again };
}
