// What the scripts of clients share: arguments, a run of checks, an error that must come.
import assert from "node:assert/strict";

export { assert };
export const [baseURL, model] = process.argv.slice(2);

/** Runs each check; the first that fails ends the process with a status other than 0. */
export async function run(...checks) {
  for (const check of checks) {
    await check();
    console.log("ok", check.name);
  }
}

/** Runs all checks at the same time; one that fails ends the process with a status other than 0. */
export async function runTogether(...checks) {
  await Promise.all(checks.map((check) => run(check)));
}

/** Says so, and goes on with the next line of standard input. */
export async function pause() {
  console.log("pauses");
  await new Promise((resolve) => process.stdin.once("data", resolve).resume());
  // An input that is read would keep the process alive.
  process.stdin.pause();
}

/** The error of this kind that `call` throws. */
export async function thrown(kind, call) {
  try {
    await call();
  } catch (error) {
    assert.ok(error instanceof kind, `${error?.constructor?.name}: ${error?.message}`);
    return error;
  }
  assert.fail(`${kind.name} was not thrown`);
}

/** All that an async iterable gives. */
export async function collected(iterable) {
  const all = [];
  for await (const one of iterable) all.push(one);
  return all;
}
