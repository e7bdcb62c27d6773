// The scenarios of a client, one after the other. Each outcome is a line of JSON on standard output;
// what the client prints itself goes to standard error. The Python clients' form of this is
// tests/clients/scenario.py.

import { createRequire } from "node:module";

const { packages } = createRequire(import.meta.url)("./package-lock.json");
const all = [];

const given = (name) => {
  const value = process.env[`OMLX_CLIENTS_${name}`];
  if (value === undefined) throw new Error(`OMLX_CLIENTS_${name} is not set`);
  return value;
};

export const server = {
  url: given("URL"),
  v1: `${given("URL")}/v1`,
  model: given("MODEL"),
  embeddingModel: given("EMBEDDING_MODEL"),
  callingModel: given("CALLING_MODEL"),
  callingModelAnswer: given("CALLING_MODEL_ANSWER"),
};

export const scenario = (name, run) => all.push({ name, run });

export const main = async (name) => {
  const { version } = packages[`node_modules/${name}`];
  for (const level of ["log", "info", "warn", "debug"]) console[level] = console.error;
  for (const { name, run } of all) {
    const began = performance.now();
    let error = "";
    try {
      await run();
    } catch (thrown) {
      console.error(thrown);
      error = `${thrown?.name ?? "thrown"}: ${thrown?.message ?? thrown}`.replace(/\s+/g, " ");
    }
    const seconds = (performance.now() - began) / 1000;
    process.stdout.write(`${JSON.stringify({ version, scenario: name, seconds, error })}\n`);
  }
};
