// The figures at the top, and the table of models.

/** One number with its history. */
class Figure {
  constructor(list, title) {
    this.value = make("dd");
    this.spark = new Sparkline(title);
    this.values = [];
    list.append(make("div", {}, make("dt", { textContent: title }), this.value, this.spark.svg));
  }

  set(value, text, unit = "") {
    this.values.push(value);
    if (this.values.length > 60) this.values.shift();
    setText(this.value, text);
    if (unit) this.value.append(make("small", { textContent: unit }));
    this.spark.set(this.values);
  }
}

class Figures {
  constructor(list) {
    this.requests = new Figure(list, "Requests per second");
    this.errors = new Figure(list, "Errors per second");
    this.waiting = new Figure(list, "Requests waiting");
    this.busy = new Figure(list, "Instances busy");
    this.memory = new Figure(list, "Memory of requests");
  }

  update(server) {
    const versions = [...server.versions.values()];
    const total = (read) => sum(versions.map(read));
    const perSecond = total((one) => rate(one.samples, requests));
    this.requests.set(perSecond, short(perSecond));
    const wrong = total((one) => rate(one.samples, errors));
    this.errors.set(wrong, short(wrong));
    const waiting = total((one) => one.frame.queue.waiting);
    this.waiting.set(waiting, short(waiting));
    const instances = total((one) => one.instances.size);
    const busy = total((one) => (one.busy() || 0) * one.instances.size);
    this.busy.set(busy, short(busy), `of ${instances}`);
    const { held, limit, refused } = server.memory;
    const unit = limit === null ? "" : `of ${bytes(limit)}${refused ? `, ${short(refused)} refused` : ""}`;
    this.memory.set(held, bytes(held), unit);
  }
}

/** What happened before the page was opened. */
class Past {
  constructor(list) {
    this.lines = [
      ["Requests", (history) => history.rates("requests"), (value) => `${short(value)}/s`],
      ["Errors", (history) => history.rates("errors"), (value) => `${short(value)}/s`],
      ["Memory of requests", (history) => history.memory, bytes],
    ].map(([title, read, show]) => {
      const spark = new Sparkline();
      const most = make("dd");
      list.append(make("div", {}, make("dt", { textContent: title }), spark.svg, most));
      return { read, show, spark, most };
    });
  }

  update(history) {
    for (const { read, show, spark, most } of this.lines) {
      const values = read(history);
      spark.set(values);
      setText(most, `at most ${show(Math.max(...values, 0))}`);
    }
  }
}

/** A row for each GPU; nothing without one. */
class Gpus {
  constructor(section) {
    this.section = section;
    this.list = section.querySelector("ul");
  }

  update(gpus) {
    this.section.hidden = gpus.length === 0;
    const share = (part, all) => (part === null || !all ? NaN : part / all);
    const cell = (value, text) => make("span", { className: "cell" }, meter(value), make("span", { textContent: text }));
    this.list.replaceChildren(...gpus.map((gpu) => {
      const { memory_used: used, memory_total: total, power_mw: power, power_limit_mw: limit } = gpu;
      const busy = share(gpu.utilization_percent, 100);
      return make(
        "li",
        {},
        make("span", { textContent: `${gpu.number} · ${gpu.name}` }),
        cell(busy, `${percent(busy)} busy`),
        cell(share(used, total), total === null ? "–" : `${bytes(used)} of ${bytes(total)}`),
        cell(share(power, limit), power === null ? "–" : `${short(power / 1e3)} W of ${short((limit ?? NaN) / 1e3)} W`),
      );
    }));
  }
}

const STAGES = ["queue", "input", "infer", "output"];

/** A row of the table, kept as long as its model is there. */
class ModelRow {
  constructor(row, actions) {
    this.actions = actions;
    this.body = make("tbody");
    this.number = make("small");
    this.title = make("th", { scope: "row" }, make("span", { className: "name", textContent: row.name }), this.number);
    this.state = make("span", { className: "state" });
    this.reason = make("small", { className: "reason" });
    this.requests = make("span", { className: "number" });
    this.requestsLine = new Sparkline();
    this.tokens = make("small", { title: "Tokens for clients of OpenAI's API, and the median time to the first token of a stream, over the last three seconds" });
    this.queue = make("span", { className: "number" });
    this.queueLine = new Sparkline();
    this.waits = make("small");
    this.batch = make("span", { className: "number" });
    this.batchMost = make("small");
    this.busy = make("span", { className: "number" });
    this.busyMeter = make("div", { className: "meter", "aria-hidden": "true" }, make("i"));
    this.latency = make("span", { className: "number" });
    this.stack = make("div", { className: "stack", "aria-hidden": "true" });
    this.stages = STAGES.map((stage) => make("div", { className: `stage ${stage}` }));
    this.stack.append(...this.stages);
    this.quantiles = make("small", { title: "Estimated from the buckets of a histogram, over the last three seconds" });
    this.stageText = make("small");
    this.errors = make("span");
    this.kinds = make("small");
    this.details = make("button", { type: "button", textContent: "Details", "aria-expanded": "false" });
    this.details.addEventListener("click", () => this.toggle());
    this.try = make("button", { type: "button", textContent: "Try" });
    this.try.addEventListener("click", () => actions.try(this.row));
    this.change = make("button", { type: "button" });
    this.change.addEventListener("click", () => actions.change(this.row));
    const cell = (label, className, ...content) =>
      make("td", { "data-label": label, className }, ...content);
    const line = (...content) => make("div", { className: "cell" }, ...content);
    this.status = cell("State", "status", this.state, this.reason);
    this.main = make(
      "tr",
      { className: "model" },
      this.title,
      this.status,
      cell("Requests", "", line(this.requests, this.requestsLine.svg), this.tokens),
      cell("Queue", "", line(this.queue, this.queueLine.svg), this.waits),
      cell("Batch", "", this.batch, this.batchMost),
      cell("Busy", "", line(this.busy, this.busyMeter)),
      cell("Latency", "latency", line(this.latency, this.stack), this.quantiles, this.stageText),
      cell("Errors", "", this.errors, this.kinds),
      cell("", "action", make("div", { className: "buttons" }, this.details, this.try, this.change)),
    );
    this.body.append(this.main);
    this.more = undefined;
  }

  toggle() {
    const isOpen = !this.more;
    this.details.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) {
      const content = make("div", { className: "grid" });
      this.more = make("tr", { className: "details" }, make("td", { colSpan: 9 }, content));
      this.body.append(this.more);
      this.showDetails();
    } else {
      this.more.remove();
      this.more = undefined;
    }
  }

  update(row, control, server) {
    this.row = row;
    this.server = server;
    const { version } = row;
    const platform = version?.frame.platform ?? "";
    setText(this.number, [row.number && `version ${row.number}`, platform].filter(Boolean).join(" · "));
    this.state.dataset.state = row.state;
    setText(this.state, row.state ? row.state.toLowerCase() : "not loaded");
    setText(this.reason, row.reason);
    const isAddressable = encodeURIComponent(row.name) === row.name;
    for (const [button, verb] of [[this.details, "Details of"], [this.try, "Try"]]) {
      button.hidden = !version;
      button.setAttribute("aria-label", `${verb} ${row.name}`);
    }
    this.try.disabled = !isAddressable;
    this.change.hidden = !control || ["LOADING", "UNLOADING"].includes(row.state);
    setText(this.change, version ? "Unload" : "Load");
    this.change.setAttribute("aria-label", `${version ? "Unload" : "Load"} ${row.name}`);
    this.change.disabled = !isAddressable;
    if (version) this.numbers(version);
    else this.blank();
    if (!version && this.more) this.toggle();
    if (this.more) this.showDetails();
  }

  blank() {
    for (const one of [this.requests, this.tokens, this.queue, this.waits, this.batch, this.batchMost, this.busy, this.latency, this.quantiles, this.stageText, this.errors, this.kinds]) setText(one, "");
    for (const one of [this.requestsLine.svg, this.queueLine.svg, this.busyMeter, this.stack]) one.setAttribute("hidden", "");
    this.main.className = "model idle";
    // A reason has the whole row: the other columns are empty.
    this.status.colSpan = 7;
  }

  numbers(version) {
    this.main.className = "model";
    this.status.colSpan = 1;
    for (const one of [this.requestsLine.svg, this.queueLine.svg, this.busyMeter, this.stack]) one.removeAttribute("hidden");
    const { samples, frame } = version;
    setText(this.requests, `${short(rate(samples, requests))}/s`);
    this.requestsLine.set(rates(samples, requests));
    setText(this.tokens, generationText(samples));
    const { waiting, oldest_us: oldest, waits_for: reason } = frame.queue;
    setText(this.queue, short(waiting));
    this.queueLine.set(samples.map((sample) => sample.frame.queue.waiting));
    const sequences = frame.sequences;
    const slots = sequences && `${short(sequences.taken_slots)} of ${short(sequences.taken_slots + sequences.free_slots)} slots, ${short(sequences.backlog)} in the backlog`;
    setText(this.waits, waiting ? `${duration(oldest)} ${WAITS[reason] ?? ""}` : slots || "");
    const size = meanBatch(samples);
    setText(this.batch, Number.isNaN(size) ? "–" : short(size));
    setText(this.batchMost, frame.max_batch_size ? `of ${frame.max_batch_size}` : "no batching");
    const busy = version.busy();
    setText(this.busy, percent(busy));
    this.busyMeter.firstChild.style.width = `${Math.round(100 * (busy || 0))}%`;
    const means = STAGES.map((stage) => meanStage(samples, stage));
    const whole = meanStage(samples, "success");
    setText(this.latency, duration(whole));
    const [half, most99] = [0.5, 0.99].map((share) => quantile(samples, this.server.bounds, share));
    setText(this.quantiles, Number.isNaN(half) ? "" : `p50 ${duration(half)} · p99 ${duration(most99)}`);
    const most = Math.max(sum(means.map((mean) => mean || 0)), 1e-9);
    this.stages.forEach((element, at) => {
      element.style.flexBasis = `${(100 * (means[at] || 0)) / most}%`;
    });
    const named = STAGES.map((stage, at) => `${stage} ${duration(means[at])}`);
    setText(this.stageText, named.filter((_, at) => means[at] >= 0.01 * whole).join(" · "));
    this.stageText.title = named.join(" · ");
    const perSecond = rate(samples, errors);
    setText(this.errors, perSecond > 0 ? `${short(perSecond)}/s` : "0");
    this.errors.className = perSecond > 0 ? "bad" : "";
    const kinds = Object.entries(failed(frame)).filter(([, count]) => count > 0);
    setText(this.kinds, kinds.map(([kind, count]) => `${short(count)} ${kind}`).join(", "));
  }

  showDetails() {
    const { version } = this.row;
    const { frame, samples } = version;
    const grid = this.more.firstChild.firstChild;
    const part = (title, rows) => {
      const most = Math.max(1e-9, ...rows.map(([, share]) => share));
      const line = ([name, share, text, label]) =>
        make("li", { title: label ?? "" }, make("span", { textContent: name }), meter(share / most), make("span", { textContent: text }));
      const list = make("ul", { className: "rows" }, ...rows.map(line));
      const none = make("p", { className: "quiet", textContent: "none" });
      return make("div", {}, make("h3", { textContent: title }), rows.length ? list : none);
    };
    const closed = frame.closed.filter(([, count]) => count > 0);
    const perSecond = (table, name) => rate(samples, (one) => Object.fromEntries(one[table])[name] ?? 0);
    const memory = frame.memory.map(([kind, id, size]) => [`${kind} ${id}`, size, bytes(size)]);
    if (frame.held_bytes) memory.push(["requests", frame.held_bytes, bytes(frame.held_bytes)]);
    const past = this.server.history.models.get(version.key);
    const seconds = this.server.history.periodMs / 1e3;
    const pastLine = (title, values, show) => {
      const spark = new Sparkline();
      spark.set(values);
      const most = `at most ${show(Math.max(...values, 0))}`;
      return make("li", {}, make("span", { textContent: title }), spark.svg, make("span", { textContent: most }));
    };
    const perPeriod = (value) => `${short(value / seconds)}/s`;
    const pastLines = past ? [
      pastLine("requests", past.requests, perPeriod),
      pastLine("errors", past.errors, perPeriod),
      pastLine("p50", past.p50_us.map((value) => value ?? 0), duration),
      pastLine("p99", past.p99_us.map((value) => value ?? 0), duration),
    ] : [];
    grid.replaceChildren(
      make("div", {}, make("h3", { textContent: "Last fifteen minutes" }), make("ul", { className: "rows" }, ...pastLines)),
      part("Why batches were closed", closed.map(([reason, count]) => [reason, count, `${short(count)} · ${short(perSecond("closed", reason))}/s`, REASONS[reason]?.[1]])),
      part("Executions by batch size", frame.batches.map(([size, count]) => [String(size), count, short(count)])),
      part("Requests that failed", [...Object.entries(frame.failures), ...frame.unexecuted].filter(([, count]) => count > 0).map(([kind, count]) => [kind, count, short(count)])),
      part("Instances", [...version.instances].map(([name, { lost }]) => {
        const busy = version.busy(name);
        return [name, busy || 0, `${percent(busy)} busy${lost ? `, ${short(lost)} not shown` : ""}`];
      })),
      part("Memory", memory),
    );
  }
}

/** The table. Rows are kept, so that what is focused stays focused. */
class Models {
  constructor(table, actions) {
    this.table = table;
    this.actions = actions;
    this.rows = new Map();
    table.querySelector("tbody").remove();
  }

  update(server, control) {
    const rows = server.rows();
    const wanted = new Map(rows.map((row) => [`${row.name}\n${row.number}`, row]));
    for (const [key, known] of this.rows) {
      if (wanted.has(key)) continue;
      known.body.remove();
      this.rows.delete(key);
    }
    let previous = this.table.tHead;
    for (const [key, row] of wanted) {
      const known = this.rows.get(key) ?? new ModelRow(row, this.actions);
      this.rows.set(key, known);
      known.update(row, control, server);
      if (previous.nextElementSibling !== known.body) previous.after(known.body);
      previous = known.body;
    }
    $("empty").hidden = rows.length > 0;
  }

  /** Where the focus goes after a model was loaded or unloaded. */
  focus(name) {
    const found = [...this.rows.values()].find((one) => one.row.name === name && !one.change.hidden);
    found?.change.focus();
  }
}
