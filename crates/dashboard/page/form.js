// The dialogs: trying a model, confirming, giving a key.

/** Shows a dialog, and waits for how it is closed. */
function ask(dialog) {
  return new Promise((answer) => {
    dialog.returnValue = "";
    dialog.addEventListener("close", () => answer(dialog.returnValue), { once: true });
    dialog.showModal();
  });
}

async function confirmed(title, text, verb) {
  setText($("confirm-title"), title);
  setText($("confirm-text"), text);
  setText($("confirm-yes"), verb);
  return (await ask($("confirm"))) === "yes";
}

/** Asks for the value of a header that the server demands. */
async function askKey(header) {
  setText($("key").querySelector("label"), `Value of the header ${header}`);
  const field = $("key-value");
  field.value = "";
  if ((await ask($("key"))) !== "yes") return false;
  keys.set(header, field.value);
  return true;
}

/** Calls the server, and asks for a key where it demands one. */
async function callWithKey(method, path, body) {
  for (;;) {
    try {
      return await call(method, path, body);
    } catch (error) {
      if (!(error instanceof Refused) || !error.header || !(await askKey(error.header))) throw error;
    }
  }
}

const INTEGERS = /^U?INT\d+$/;

/** The number of elements of a shape. */
function elementCount(shape) {
  return shape.reduce((count, size) => count * size, 1);
}

/** What a field begins with. */
function example(datatype, shape) {
  const count = Math.min(elementCount(shape), 4096);
  if (datatype === "BYTES") return Array(count).fill("text").join("\n");
  const one = datatype === "BOOL" ? false : INTEGERS.test(datatype) ? 1 : 0.5;
  return JSON.stringify(Array(count).fill(one));
}

function parseShape(text) {
  const sizes = text.split(/[\s,x×]+/).filter(Boolean).map(Number);
  if (sizes.some((size) => !Number.isInteger(size) || size < 0)) throw new Error(`“${text}” is not a shape, such as 1, 3`);
  return sizes;
}

/** The fields of an input. */
class InputFields {
  constructor({ name, datatype, shape }, number) {
    Object.assign(this, { name, datatype });
    const sizes = shape.map((size) => (size < 0 ? 1 : size));
    const id = (part) => `input-${number}-${part}`;
    this.shape = make("input", { id: id("shape"), className: "shape", value: sizes.join(", "), autocomplete: "off" });
    this.data = make("textarea", { id: id("data"), value: example(datatype, sizes), spellcheck: false });
    this.untouched = this.data.value;
    this.shape.addEventListener("change", () => this.refill());
    const hint = datatype === "BYTES" ? "one element in each line" : "JSON, nested or flat";
    this.element = make(
      "fieldset",
      {},
      make("legend", { textContent: `${name} · ${datatype}` }),
      make("p", { className: "field" }, make("label", { htmlFor: id("shape"), textContent: `Shape (${shape.join(", ")})` }), this.shape),
      make("label", { className: "block", htmlFor: id("data"), textContent: `Data: ${hint}` }),
      this.data,
    );
  }

  /** A new shape gets new data, unless somebody wrote there. */
  refill() {
    if (this.data.value !== this.untouched) return;
    try {
      this.data.value = example(this.datatype, parseShape(this.shape.value));
      this.untouched = this.data.value;
    } catch {
      // The message comes when it is sent.
    }
  }

  tensor() {
    const shape = parseShape(this.shape.value);
    const data = this.datatype === "BYTES" ? (elementCount(shape) === 1 ? [this.data.value] : this.data.value.split("\n")) : this.json();
    return { name: this.name, datatype: this.datatype, shape, data };
  }

  json() {
    try {
      return JSON.parse(this.data.value);
    } catch (error) {
      throw new Error(`The data of ${this.name} is no JSON: ${error.message}`);
    }
  }
}

class TryDialog {
  constructor() {
    this.fields = [];
    $("try-send").addEventListener("click", () => this.send());
    $("try-curl").addEventListener("click", () => this.copy());
    $("try").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.send();
    });
  }

  async open({ name, number }) {
    this.path = `/v2/models/${name}/versions/${number}`;
    setText($("try-title"), `Try ${name}, version ${number}`);
    this.result();
    $("try-inputs").replaceChildren();
    const metadata = await callWithKey("GET", this.path);
    this.fields = metadata.inputs.map((input, at) => new InputFields(input, at));
    $("try-inputs").replaceChildren(...this.fields.map((field) => field.element));
    await ask($("try"));
  }

  result(title = "", text = "", isError = false) {
    const [heading, body] = [$("try-result-title"), $("try-result")];
    heading.hidden = !title;
    body.hidden = !title;
    setText(heading, title);
    setText(body, text);
    body.className = isError ? "bad" : "";
  }

  /** The request as a command, shown too: a page without TLS has no clipboard. */
  async copy() {
    try {
      const body = JSON.stringify({ inputs: this.fields.map((field) => field.tensor()) });
      const headers = [...keys.keys()].map((name) => ` \\\n  --header ${quoted(`${name}: VALUE`)}`).join("");
      const text = `curl ${quoted(location.origin + this.path + "/infer")}${headers} \\\n  --data ${quoted(body)}`;
      const isCopied = await navigator.clipboard?.writeText(text).then(() => true, () => false);
      this.result(isCopied ? "Copied as curl" : "As curl", text);
    } catch (error) {
      this.result("Not a request", error.message, true);
    }
  }

  async send() {
    const button = $("try-send");
    if (button.disabled) return;
    button.disabled = true;
    const begin = performance.now();
    try {
      const inputs = this.fields.map((field) => field.tensor());
      const response = await callWithKey("POST", `${this.path}/infer`, { inputs });
      const took = duration(1e3 * (performance.now() - begin));
      this.result(`Response after ${took}`, shown(response));
    } catch (error) {
      this.result(error instanceof Refused ? `Error ${error.status}` : "Not sent", error.message, true);
    }
    button.disabled = false;
  }
}

/** A word of a shell. */
function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** A response as text: arrays of numbers on one line, and not without end. */
function shown(response) {
  const { outputs = [], ...rest } = response;
  const lines = [JSON.stringify(rest)];
  for (const { name, datatype, shape, data } of outputs) {
    const text = JSON.stringify(data);
    lines.push("", `${name} · ${datatype} [${shape.join(", ")}]`, text.length > 20000 ? `${text.slice(0, 20000)}…` : text);
  }
  return lines.join("\n");
}
