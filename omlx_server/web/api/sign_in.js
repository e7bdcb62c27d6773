// Signs in with the code that an address may have: /#in=CODE. It is good once, for some minutes.
import { post } from "./client.js";
import { enter, linkProblem } from "./session.js";

/** Takes the code out of the address and its history, and enters what it stands for. */
export async function signIn() {
  const [, code] = /^#in=([\w-]+)$/.exec(location.hash) ?? [];
  if (!code) return;
  history.replaceState(null, "", `${location.pathname}${location.search}#talk`);
  try {
    const { key, token } = await post("sign-in", { code });
    enter({ key, token });
    linkProblem.set("");
  } catch (error) {
    linkProblem.set(`The link did not sign you in: ${error.message}.`);
  }
}

addEventListener("hashchange", signIn);
