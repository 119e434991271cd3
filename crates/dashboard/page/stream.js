// The stream of events, and requests to the server. Both send the keys that were given.

/** Headers that the server demands, by name. They leave with the page. */
const keys = new Map();

/** The header that a refusal of a restricted API names. */
function demandedHeader(text) {
  return /restricted, expecting header '([^']+)'/.exec(text)?.[1];
}

class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
    this.header = status === 403 ? demandedHeader(text) : undefined;
  }
}

/** The text of a response, whatever its form is. */
function errorText(body, status) {
  try {
    return JSON.parse(body).error ?? body;
  } catch {
    return body || `HTTP status ${status}`;
  }
}

async function call(method, path, body) {
  const headers = new Headers(keys);
  if (body !== undefined) headers.set("Content-Type", "application/json");
  const options = { method, headers, credentials: "same-origin", redirect: "error" };
  if (body !== undefined) options.body = JSON.stringify(body);
  const response = await fetch(path, options);
  const text = await response.text();
  if (!response.ok) throw new Refused(response.status, errorText(text, response.status));
  return text ? JSON.parse(text) : undefined;
}

/** The events of a response. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const fields = new Map(part.split("\n").map((line) => line.split(/: ?(.*)/s, 2)));
      if (fields.has("data")) yield [fields.get("event"), JSON.parse(fields.get("data"))];
    }
  }
}

const pause = (ms) => new Promise((resume) => setTimeout(resume, ms));

/** Reads the stream again and again while the page is seen. */
class Stream {
  constructor({ event, state }) {
    this.event = event;
    this.state = state;
    this.abort = undefined;
    this.isWanted = false;
  }

  start() {
    if (this.isWanted) return;
    this.isWanted = true;
    this.run();
  }

  stop() {
    this.isWanted = false;
    this.abort?.abort();
  }

  async run() {
    let wait = 500;
    while (this.isWanted) {
      try {
        this.abort = new AbortController();
        const headers = new Headers([...keys, ["Galatea-Dashboard", "1"], ["Accept", "text/event-stream"]]);
        const options = { headers, cache: "no-store", redirect: "error", signal: this.abort.signal };
        const response = await fetch("/dashboard/events", options);
        if (!response.ok) throw new Refused(response.status, errorText(await response.text(), response.status));
        for await (const [name, data] of eventsOf(response)) {
          wait = 500;
          this.event(name, data);
        }
        if (this.isWanted) this.state("waiting", "the stream ended; connecting again");
      } catch (error) {
        if (!this.isWanted) return;
        if (error instanceof Refused && error.header) {
          this.isWanted = false;
          this.state("refused", error.message, error.header);
          return;
        }
        this.state("waiting", error instanceof Refused ? error.message : "no connection; trying again");
      }
      await pause(wait);
      wait = Math.min(2 * wait, 5000);
    }
  }
}
