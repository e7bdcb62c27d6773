// What the server is doing, as it tells it once a second. It is asked only while a view that shows
// it is open and the tab can be seen.
import { Signal } from "../parts/signal.js";
import { useEffect } from "../parts/ui.js";
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
