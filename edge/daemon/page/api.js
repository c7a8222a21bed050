// Requests to the service, and the stream of numbers. The token of the session is kept for this
// origin only: cookies are shared by all ports of a host, and this storage is not.

const KEY = "slackline-token";

/** @returns {string} */
function token() {
  return localStorage.getItem(KEY) ?? "";
}

export class Refused extends Error {
  /** @param {number} status @param {any} problem */
  constructor(status, problem) {
    super(problem?.detail ?? `the service answered ${status}`);
    this.status = status;
    this.problem = problem ?? {};
  }
  /** The reason with the hint, as one text. */
  get says() {
    return this.problem.hint ? `${this.message}. Hint: ${this.problem.hint}` : this.message;
  }
}

/**
 * @param {string} method @param {string} path @param {any} [body]
 * @param {Record<string, string>} [headers] @param {AbortSignal} [signal]
 */
export async function ask(method, path, body, headers = {}, signal) {
  const options = {
    method, signal, credentials: /** @type {const} */ ("same-origin"),
    headers: { "x-slackline-token": token(), ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
  };
  if (body !== undefined) options.headers["content-type"] = "application/json";
  const answer = await fetch(path, options);
  const text = await answer.text();
  let value = null;
  try { value = text ? JSON.parse(text) : null; } catch { value = null; }
  if (!answer.ok) throw new Refused(answer.status, value);
  return value;
}

/** Logs in with the code of the fragment, if there is one. Returns the session. */
export async function session() {
  const code = location.hash.slice(1);
  if (/^[0-9a-f]{64}$/.test(code)) {
    // The code works only once, so it is removed from the address and from the history.
    history.replaceState(null, "", location.pathname);
    const session = await ask("POST", "/page/login", { code });
    localStorage.setItem(KEY, session.token);
    return session;
  }
  return ask("GET", "/v1/session");
}

export function hasToken() {
  return token() !== "" || location.hash.length > 1;
}

export async function logOut() {
  await ask("DELETE", "/v1/session").catch(() => {});
  localStorage.removeItem(KEY);
}

export function forget() {
  localStorage.removeItem(KEY);
}

/** Returns a header with which a change takes effect once, even if the request is sent again. */
export function once() {
  return { "idempotency-key": crypto.randomUUID() };
}

/** @param {string} name */
export function reservation(name) {
  return `/v1/reservations/${encodeURIComponent(name)}`;
}

/**
 * Reads the stream of the page until it ends. A plain EventSource could not send the token.
 * @param {(kind: string, data: any) => void} on @param {AbortSignal} signal
 */
export async function stream(on, signal) {
  const headers = { "x-slackline-token": token() };
  const answer = await fetch("/v1/timeline", { headers, signal, credentials: "same-origin" });
  if (!answer.ok || !answer.body) {
    throw new Refused(answer.status, await answer.json().catch(() => null));
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop() ?? "";
    for (const part of parts) {
      let kind = "message", data = "";
      for (const line of part.split("\n")) {
        if (line.startsWith("event: ")) kind = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data) on(kind, JSON.parse(data));
    }
  }
}
