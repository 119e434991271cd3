// The models in memory over the last fifteen minutes, if models are loaded on demand.

const RESIDENCY_MS = 15 * 60e3;
/** How many changes are told in words. */
const TOLD_MAX = 8;
const CHANGE_TEXTS = {
  load: "is being loaded",
  loaded: "was loaded",
  failed: "could not be loaded",
  unload: "is being unloaded",
  unloaded: "was unloaded",
};

/** The stays of each model: when its load began, when it served, and when it left. */
function stays(changes, now) {
  const models = new Map();
  for (const [at, name, kind, size, reason] of changes) {
    if (!models.has(name)) models.set(name, []);
    const known = models.get(name);
    if (kind === "load" || known.length === 0) {
      // A stay whose load is no longer known has been there all along.
      const begin = kind.startsWith("unload") ? 0 : at;
      const ready = kind.startsWith("unload") ? 0 : undefined;
      known.push({ begin, ready, end: undefined, size, reasons: [] });
    }
    const stay = known.at(-1);
    if (reason) stay.reasons.push(reason);
    if (kind === "loaded") Object.assign(stay, { ready: at, size });
    if (kind === "failed") Object.assign(stay, { end: at, hasFailed: true });
    if (kind === "unload") stay.leaving = at;
    if (kind === "unloaded") stay.end = at;
  }
  for (const all of models.values()) for (const stay of all) stay.until = stay.end ?? now;
  return models;
}

/** A row for each model that has been in memory, and the latest changes in words. */
class Residency {
  constructor(section) {
    this.section = section;
    this.used = section.querySelector(".used");
    this.rows = section.querySelector(".stays");
    this.told = section.querySelector(".told");
  }

  update({ residency }) {
    this.section.hidden = !residency;
    if (!residency) return;
    const { at_ms: now, used, limit, changes } = residency;
    setText(this.used, `${bytes(used)} of ${bytes(limit)}`);
    const names = [...stays(changes, now)].sort(([one], [other]) => (one < other ? -1 : 1));
    this.rows.replaceChildren(...names.map(([name, all]) => this.row(name, all, now)));
    const latest = changes.slice(-TOLD_MAX).reverse();
    this.told.replaceChildren(...latest.map(([at, name, kind, size, reason]) => {
      const text = `${name} ${CHANGE_TEXTS[kind]}${size ? ` (${bytes(size)})` : ""}${reason ? `: ${reason}` : ""}`;
      return make("li", {}, make("span", { className: "ago", textContent: `${duration(1e3 * (now - at))} ago` }), text);
    }));
  }

  row(name, all, now) {
    const place = (at) => 100 * Math.max(0, 1 - (now - at) / RESIDENCY_MS);
    const part = (from, to, className, title) => {
      const bar = make("i", { className, title });
      bar.style.left = `${place(from).toFixed(2)}%`;
      bar.style.width = `${Math.max(place(to) - place(from), 0.15).toFixed(2)}%`;
      return bar;
    };
    const track = make("div", { className: "track", "aria-hidden": "true" });
    for (const stay of all) {
      const title = [bytes(stay.size), ...stay.reasons].join(", ");
      const ready = stay.ready ?? stay.until;
      track.append(part(stay.begin, ready, stay.hasFailed ? "failed" : "loading", title));
      if (stay.ready !== undefined) track.append(part(ready, stay.leaving ?? stay.until, "resident", title));
      if (stay.leaving !== undefined) track.append(part(stay.leaving, stay.until, "leaving", title));
    }
    const last = all.at(-1);
    const text = last.end === undefined ? bytes(last.size) : "–";
    return make("li", {}, make("span", { textContent: name }), track, make("span", { textContent: text }));
  }
}
