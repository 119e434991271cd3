// What is known of the server: the frames of the last half minute, and what follows from them.
// No part of this touches the document.

/** How long executions and samples are kept, in microseconds. */
const KEPT_US = 32e6;
/** Over how long rates and means are taken. */
const RATE_US = 3e6;
const BARS_MAX = 20000;

/** An execution, or several short ones, as `frame.rs` writes them. */
function bar([begin, end, count, batch, busy, waited, reasons]) {
  return { begin, end, count, batch, busy, waited, reasons };
}

/** The oldest sample that is no older than the period of rates, and the newest. */
function ends(samples, period = RATE_US) {
  const last = samples.at(-1);
  if (!last) return [undefined, undefined];
  return [samples.find((sample) => sample.at >= last.at - period), last];
}

/** How much a counter has grown per second. */
function rate(samples, read, period = RATE_US) {
  const [first, last] = ends(samples, period);
  const seconds = last ? (last.at - first.at) / 1e6 : 0;
  return seconds > 0 ? (read(last.frame) - read(first.frame)) / seconds : 0;
}

/** The mean of the latest durations of a stage, in microseconds; NaN without any. */
function meanStage(samples, stage) {
  const [first, last] = ends(samples);
  if (!last) return NaN;
  const [count, ns] = last.frame.stages[stage].map((one, at) => one - first.frame.stages[stage][at]);
  return count > 0 ? ns / count / 1e3 : NaN;
}

/** The mean size of the latest batches. */
function meanBatch(samples) {
  const [first, last] = ends(samples);
  if (!last) return NaN;
  const executions = last.frame.executions - first.frame.executions;
  return executions > 0 ? (last.frame.inferences - first.frame.inferences) / executions : NaN;
}

/** A duration that this share of the latest requests doesn't exceed, in microseconds; NaN without any. */
function quantile(samples, bounds, share, read = (frame) => frame.latency) {
  const [first, last] = ends(samples);
  const counted = last && read(last.frame);
  if (!counted || !bounds) return NaN;
  const counts = counted.map((count, at) => count - (read(first.frame)?.[at] ?? 0));
  const wanted = share * sum(counts);
  if (!(wanted > 0)) return NaN;
  let [below, low] = [0, 0];
  for (const [at, bound] of bounds.entries()) {
    // Inside a bucket, requests are taken to lie evenly.
    if (counts[at] > 0 && below + counts[at] >= wanted) return 1e6 * (low + ((bound - low) * (wanted - below)) / counts[at]);
    [below, low] = [below + counts[at], bound];
  }
  return 1e6 * low;
}

/** The tokens that a version has generated for clients of OpenAI's API. */
const tokens = (frame) => frame.generation?.tokens ?? 0;

/** The speed of a version that generates text, as text; empty for other versions. */
function generationText(samples) {
  const generation = samples.at(-1).frame.generation;
  if (!generation) return "";
  const speed = `${short(rate(samples, tokens))} tokens/s`;
  const first = quantile(samples, generation.first_bounds_s, 0.5, (frame) => frame.generation?.first);
  return Number.isNaN(first) ? speed : `${speed}, first after ${duration(first)}`;
}

const sum = (numbers) => numbers.reduce((all, one) => all + one, 0);

function failed(frame) {
  const counted = Object.fromEntries(frame.unexecuted);
  const { canceled, backend, other } = frame.failures;
  const of = (...names) => sum(names.map((name) => counted[name] ?? 0));
  return {
    refused: of("invalid", "queue_full", "unloading", "no_sequence", "missing_start"),
    expired: of("queue_timeout", "sequence_timeout"),
    cancelled: canceled,
    failed: backend + other,
  };
}

const errors = (frame) => sum(Object.values(failed(frame)));
const requests = (frame) => frame.stages.success[0] + errors(frame);

/** A version of a model, over time. */
class Version {
  constructor(key) {
    this.key = key;
    this.samples = [];
    this.instances = new Map();
  }

  get frame() {
    return this.samples.at(-1).frame;
  }

  add(frame, at) {
    // A version that was loaded anew counts from the beginning.
    if (this.samples.length && requests(frame) < requests(this.frame)) this.samples = [];
    this.samples.push({ at, frame });
    while (this.samples[0].at < at - KEPT_US) this.samples.shift();
    const known = this.instances;
    this.instances = new Map();
    for (const instance of frame.instances) {
      const bars = known.get(instance.name)?.bars ?? [];
      for (const one of instance.ended) bars.push(bar(one));
      const old = bars.findIndex((one) => one.end >= at - KEPT_US);
      bars.splice(0, Math.max(old < 0 ? bars.length : old, bars.length - BARS_MAX));
      const current = instance.current && bar(instance.current);
      this.instances.set(instance.name, { bars, current, lost: instance.lost });
    }
    for (const [name, row] of this.instances) row.busy = this.busy(name);
  }

  /** The share of time in which an instance, or all of them, executed. */
  busy(name) {
    const at = this.samples.at(-1).at;
    const [first] = ends(this.samples);
    const from = first.at;
    if (at <= from) return NaN;
    const rows = name === undefined ? [...this.instances.values()] : [this.instances.get(name)];
    const share = rows.map(({ bars, current }) => {
      let busy = current ? at - Math.max(current.begin, from) : 0;
      for (let index = bars.length - 1; index >= 0 && bars[index].end > from; index -= 1) {
        const one = bars[index];
        const whole = Math.max(one.end - one.begin, 1);
        busy += one.busy * Math.min(1, (one.end - Math.max(one.begin, from)) / whole);
      }
      return Math.min(1, busy / (at - from));
    });
    return share.length ? sum(share) / share.length : NaN;
  }
}

const keyOf = (model) => [model.namespace ?? "", model.name, model.version].join("\n");

/** The samples of the last fifteen minutes. */
class History {
  constructor() {
    this.models = new Map();
    this.memory = [];
    this.residency = undefined;
    this.periodMs = 5000;
  }

  replace(data) {
    this.models = new Map();
    this.memory = [];
    this.residency = undefined;
    this.append(data);
  }

  append({ models, memory, residency, period_ms: periodMs, samples_max: most }) {
    const known = this.models;
    if (residency) {
      const changes = [...(this.residency?.changes ?? []), ...residency.changes];
      this.residency = { ...residency, changes: changes.slice(-residency.changes_max) };
    }
    this.periodMs = periodMs;
    this.memory = [...this.memory, ...memory].slice(-most);
    this.models = new Map();
    for (const model of models) {
      const before = known.get(keyOf(model));
      const joined = {};
      for (const name of ["requests", "errors", "p50_us", "p99_us"]) {
        joined[name] = [...(before?.[name] ?? []), ...model[name]].slice(-most);
      }
      this.models.set(keyOf(model), joined);
    }
  }

  /** A count of all models for each sample, as a rate. */
  rates(name) {
    const total = this.memory.map(() => 0);
    for (const model of this.models.values()) {
      model[name].forEach((count, at) => {
        const place = total.length - model[name].length + at;
        if (place >= 0) total[place] += count;
      });
    }
    return total.map((count) => (1e3 * count) / this.periodMs);
  }
}

/** Everything that the page shows. */
class Server {
  constructor() {
    this.history = new History();
    this.gpus = [];
    this.bounds = undefined;
    this.versions = new Map();
    this.index = [];
    this.memory = undefined;
    this.omitted = 0;
    this.at = 0;
    this.reasons = [];
  }

  /** A new stream begins: its times are those of another recording. */
  restart() {
    this.versions = new Map();
    this.at = 0;
  }

  add(frame) {
    const known = this.versions;
    this.versions = new Map();
    for (const model of frame.models) {
      const key = keyOf(model);
      const version = known.get(key) ?? new Version(key);
      version.add(model, frame.at_us);
      this.versions.set(key, version);
      this.reasons = model.closed.map(([reason]) => reason);
    }
    this.memory = frame.memory;
    this.gpus = frame.gpus;
    this.bounds = frame.latency_bounds_s;
    this.omitted = frame.omitted_models;
    this.at = frame.at_us;
    // Whether models came or went.
    return known.size !== this.versions.size || [...this.versions.keys()].some((key) => !known.has(key));
  }

  /** Versions that serve with what the index says of them, and the models that don't serve. */
  rows() {
    const ready = [...this.versions.values()];
    const isReady = (entry) =>
      ready.some(({ frame }) => frame.name === entry.name && frame.version === String(entry.version));
    const others = this.index.filter((entry) => !isReady(entry));
    const rows = ready.map((version) => ({
      name: version.frame.name,
      number: version.frame.version,
      state: "READY",
      reason: "",
      version,
    }));
    for (const { name, version: number, state = "", reason = "" } of others) {
      rows.push({ name, number: number ?? "", state, reason, version: undefined });
    }
    return rows.sort(
      (a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : Number(a.number) - Number(b.number)),
    );
  }

  /** The names of the reasons in a set. */
  reasonsOf(bits) {
    return this.reasons.filter((_, at) => bits & (1 << at));
  }
}
