// The timeline: a row for each instance, a bar for each execution, and the queue of each model.

const REASONS = {
  max_size: ["#2f7de1", "it reached the maximum batch size"],
  preferred: ["#17a296", "it reached a preferred size"],
  delay: ["#dd8f2b", "its oldest request had waited for the maximum delay"],
  deadline: ["#c9a227", "a larger batch would have ended too late"],
  shape: ["#a05bd6", "the next request had another shape"],
  budget: ["#7b6fd0", "the next request would have exceeded the budget of a padded batch"],
  cost: ["#b07aa1", "more of the waiting requests would have made the padded batch slower"],
  rule: ["#d45087", "the model's own rule ended it"],
  ready_slots: ["#3fa65a", "enough slots of sequences were ready"],
  instance_idle: ["#7586a6", "an instance was free, and nothing allows to wait for more"],
  unloading: ["#d64545", "the model is unloaded"],
  unbatched: ["#4c97b5", "the model does not batch"],
};

const WAITS = {
  instance: "for a free instance",
  batch_delay: "for more requests",
  rate_limiter: "for resources that others use",
  hold: "because the scheduler is told to hold",
};

const ROW = 24;
const HEAD = 26;
const AXIS = 20;

function reasonColor(reason) {
  return REASONS[reason]?.[0] ?? "#7586a6";
}

class Timeline {
  constructor(box, canvas, tip, server) {
    Object.assign(this, { box, canvas, tip, server });
    this.context = canvas.getContext("2d");
    this.window = 5e6;
    this.filter = "";
    /** The page's clock in microseconds less the server's, as small as it was seen. */
    this.offset = undefined;
    this.pausedAt = undefined;
    this.layout = [];
    this.pointer = undefined;
    this.cursor = undefined;
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => this.point(undefined));
    box.addEventListener("keydown", (event) => this.key(event));
    box.addEventListener("blur", () => this.select(undefined));
  }

  /** A frame came: the server's time is known anew. */
  sync(at) {
    const offset = performance.now() * 1e3 - at;
    const drift = this.offset === undefined || Math.abs(offset - this.offset) > 2e6;
    this.offset = drift ? offset : Math.min(this.offset + 2e3, offset);
  }

  /** The time at the right edge: what happened until then is known. */
  now() {
    if (this.pausedAt !== undefined) return this.pausedAt;
    if (this.offset === undefined) return 0;
    return Math.min(performance.now() * 1e3 - this.offset - 650e3, this.server.at);
  }

  pause(isPaused) {
    this.pausedAt = isPaused ? this.now() : undefined;
  }

  colors() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(`--${name}`).trim();
    return { ink: of("ink"), quiet: of("quiet"), line: of("line"), raised: of("raised"), queue: of("queue"), surface: of("surface"), bad: of("bad"), accent: of("accent") };
  }

  /** Where each row lies. */
  place() {
    this.layout = [];
    let top = AXIS;
    const wanted = this.filter.toLowerCase();
    const versions = this.server.rows().map((row) => row.version).filter(Boolean);
    for (const version of versions) {
      if (!version.frame.name.toLowerCase().includes(wanted)) continue;
      this.layout.push({ top, height: HEAD, version });
      top += HEAD;
      for (const [name, row] of version.instances) {
        this.layout.push({ top, height: ROW, version, name, row });
        top += ROW;
      }
      top += 4;
    }
    this.height = Math.max(top + 4, 80);
  }

  draw() {
    this.place();
    const width = this.box.clientWidth;
    const scale = window.devicePixelRatio || 1;
    const [w, h] = [Math.round(width * scale), Math.round(this.height * scale)];
    if (this.canvas.width !== w || this.canvas.height !== h) {
      this.canvas.width = w;
      this.canvas.height = h;
      this.canvas.style.height = `${this.height}px`;
    }
    const paint = this.context;
    paint.setTransform(scale, 0, 0, scale, 0, 0);
    paint.clearRect(0, 0, width, this.height);
    this.palette = this.colors();
    this.left = Math.round(Math.min(190, Math.max(92, width * 0.16)));
    this.right = width - 10;
    this.end = this.now();
    this.axis(paint);
    const seen = [this.box.scrollTop - ROW, this.box.scrollTop + this.box.clientHeight + ROW];
    for (const place of this.layout) {
      if (place.top + place.height < seen[0] || place.top > seen[1]) continue;
      if (place.row) this.row(paint, place);
      else this.head(paint, place);
    }
    this.mark(paint);
  }

  x(time) {
    return this.right - ((this.end - time) / this.window) * (this.right - this.left);
  }

  axis(paint) {
    const { quiet, line } = this.palette;
    paint.font = "11px system-ui, sans-serif";
    paint.textBaseline = "middle";
    paint.textAlign = "center";
    const seconds = this.window / 1e6;
    const step = seconds <= 2 ? 0.5 : seconds <= 10 ? 1 : 5;
    const narrow = this.right - this.left < 420;
    for (let ago = 0, at = 0; ago <= seconds; ago += step, at += 1) {
      const x = Math.round(this.right - (ago / seconds) * (this.right - this.left)) + 0.5;
      paint.strokeStyle = line;
      paint.lineWidth = 1;
      paint.beginPath();
      paint.moveTo(x, AXIS - 3);
      paint.lineTo(x, this.height);
      paint.stroke();
      if (narrow && at % 2) continue;
      paint.fillStyle = quiet;
      paint.textAlign = ago === 0 ? "right" : "center";
      paint.fillText(ago === 0 ? "now" : `−${ago} s`, ago === 0 ? x + 6 : x, AXIS / 2);
    }
  }

  /** A model's name, and its queue over time. */
  head(paint, { top, height, version }) {
    const { ink, quiet, queue, line } = this.palette;
    const bottom = top + height - 2;
    const samples = version.samples.filter((sample) => sample.at >= this.end - this.window - 1e6 && sample.at <= this.end + 1e6);
    const most = Math.max(4, ...samples.map(({ frame }) => frame.queue.waiting));
    if (samples.some(({ frame }) => frame.queue.waiting > 0)) {
      const y = (sample) => bottom - (sample.frame.queue.waiting / most) * (height - 7);
      paint.save();
      paint.beginPath();
      paint.rect(this.left, top, this.right - this.left, height);
      paint.clip();
      paint.beginPath();
      paint.moveTo(this.x(samples[0].at), bottom);
      for (const sample of samples) paint.lineTo(this.x(sample.at), y(sample));
      paint.lineTo(this.x(samples.at(-1).at), bottom);
      paint.closePath();
      paint.globalAlpha = 0.28;
      paint.fillStyle = queue;
      paint.fill();
      paint.restore();
    }
    paint.strokeStyle = line;
    paint.beginPath();
    paint.moveTo(0, bottom + 0.5);
    paint.lineTo(this.right, bottom + 0.5);
    paint.stroke();
    paint.textAlign = "left";
    paint.textBaseline = "middle";
    paint.fillStyle = ink;
    paint.font = "600 12px system-ui, sans-serif";
    const several = [...this.server.versions.values()].filter((one) => one.frame.name === version.frame.name).length > 1;
    const title = several ? `${version.frame.name} · ${version.frame.version}` : version.frame.name;
    const { waiting, waits_for: reason } = version.frame.queue;
    const room = this.right - this.left > 420 && waiting ? 0.45 * (this.right - 14) : this.right - 14;
    const shown = this.fitted(paint, title, room);
    paint.fillText(shown, 14, top + height / 2);
    if (!waiting) return;
    const used = 14 + paint.measureText(shown).width;
    paint.font = "11px system-ui, sans-serif";
    paint.fillStyle = quiet;
    const text = `${short(waiting)} waiting ${WAITS[reason] ?? ""}`;
    paint.fillText(this.fitted(paint, text, this.right - used - 16), Math.max(used + 12, this.left + 4), top + height / 2);
  }

  row(paint, { top, height, version, name, row }) {
    const { ink, quiet, raised, bad } = this.palette;
    const most = Math.max(1, version.frame.max_batch_size);
    paint.fillStyle = raised;
    paint.globalAlpha = 0.55;
    paint.fillRect(this.left, top + 2, this.right - this.left, height - 4);
    paint.globalAlpha = 1;
    paint.font = "11px system-ui, sans-serif";
    paint.textAlign = "left";
    paint.textBaseline = "middle";
    paint.fillStyle = quiet;
    const own = name.startsWith(`${version.frame.name}_`) ? name.slice(version.frame.name.length + 1) : name;
    const hasRoom = this.left > 130;
    paint.fillText(this.fitted(paint, own, this.left - (hasRoom ? 76 : 34)), 26, top + height / 2);
    paint.textAlign = "right";
    if (hasRoom) paint.fillText(percent(row.busy), this.left - 10, top + height / 2);
    paint.textAlign = "left";
    const start = this.end - this.window;
    paint.save();
    paint.beginPath();
    paint.rect(this.left, top, this.right - this.left, height);
    paint.clip();
    if (row.lost) {
      paint.fillStyle = bad;
      paint.fillRect(this.left, top, 3, height);
    }
    const bars = row.current ? [...row.bars, row.current] : row.bars;
    let drawn = -1;
    for (let at = this.firstBar(bars, start); at < bars.length; at += 1) {
      const one = bars[at];
      const isOpen = one === row.current;
      const end = isOpen ? Math.max(this.end, one.begin) : one.end;
      if (one.begin > this.end) break;
      const x = this.x(one.begin);
      const wide = Math.max(1, this.x(end) - x);
      // Bars that share a pixel are drawn once.
      if (x + wide < drawn + 0.5) continue;
      drawn = x + wide;
      const fill = one.batch / one.count / most;
      paint.globalAlpha = 0.38 + 0.62 * Math.min(1, fill);
      paint.fillStyle = reasonColor(this.server.reasonsOf(one.reasons)[0]);
      const gap = wide > 3 ? 1 : 0;
      paint.fillRect(x, top + 2, wide - gap, height - 8);
      if (one.waited > this.window / 1000) {
        paint.globalAlpha = 1;
        const from = this.x(one.begin - one.waited);
        paint.fillRect(from, top + height - 5, x - from, 2);
      }
      paint.globalAlpha = 1;
      if (one.count > 1 && wide < 40) continue;
      const label = one.count > 1 ? `${one.count} × ${short(one.batch / one.count)}` : String(one.batch);
      if (wide > 7 * label.length + 4) {
        paint.fillStyle = ink;
        paint.textAlign = "center";
        const middle = (Math.max(x, this.left) + Math.min(x + wide, this.right)) / 2;
        paint.fillText(label, middle, top + height / 2 - 2);
      }
    }
    paint.restore();
  }

  /** The first bar that ends behind a time. Bars are sorted. */
  firstBar(bars, time) {
    let [low, high] = [0, bars.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (bars[middle].end < time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  fitted(paint, text, width) {
    if (paint.measureText(text).width <= width) return text;
    let [low, high] = [0, text.length];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (paint.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
      else high = middle - 1;
    }
    return `${text.slice(0, low)}…`;
  }

  /** The bar at a point of the canvas. */
  barAt(x, y) {
    const place = this.layout.find((one) => one.row && y >= one.top && y < one.top + one.height);
    if (!place || x < this.left) return undefined;
    const time = this.end - ((this.right - x) / (this.right - this.left)) * this.window;
    const slack = (2 * this.window) / (this.right - this.left);
    const { bars, current } = place.row;
    const at = this.firstBar(bars, time - slack);
    const found = bars[at] && bars[at].begin <= time + slack ? bars[at] : undefined;
    const open = current && current.begin <= time + slack ? current : undefined;
    return (found ?? open) && { ...place, bar: found ?? open };
  }

  point(event) {
    this.pointer = event && { x: event.offsetX, y: event.offsetY };
    if (event) this.cursor = undefined;
    this.show();
  }

  /** Arrows go from execution to execution and from instance to instance. */
  key(event) {
    const rows = this.layout.filter((one) => one.row?.bars.length);
    if (!rows.length) return;
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === "Escape") return this.select(undefined);
    if (!step) return;
    event.preventDefault();
    const known = this.cursor && rows.findIndex((one) => one.name === this.cursor.name && one.version.key === this.cursor.key);
    const row = rows[known === undefined || known < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, known + step[1]))];
    const { bars } = row.row;
    const time = this.cursor?.begin ?? this.end;
    let at = Math.min(bars.length - 1, this.firstBar(bars, time));
    if (this.cursor && step[0]) at = Math.min(bars.length - 1, Math.max(0, bars.findIndex((one) => one.begin >= time) + step[0]));
    this.select({ key: row.version.key, name: row.name, begin: bars[at].begin });
    if (row.top < this.box.scrollTop || row.top + ROW > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = row.top - 40;
  }

  select(cursor) {
    this.cursor = cursor;
    this.show();
  }

  /** The bar that the keyboard or the pointer is at. */
  selected() {
    if (this.cursor) {
      const place = this.layout.find((one) => one.row && one.name === this.cursor.name && one.version.key === this.cursor.key);
      const found = place?.row.bars.find((one) => one.begin === this.cursor.begin);
      return found && { ...place, bar: found };
    }
    return this.pointer && this.barAt(this.pointer.x, this.pointer.y);
  }

  show() {
    const found = this.selected();
    this.tip.hidden = !found;
    if (!found) return;
    const { bar: one, name, version } = found;
    const reasons = this.server.reasonsOf(one.reasons);
    const lines = [
      name,
      one.count > 1
        ? `${one.count} executions within ${duration(one.end - one.begin)}, busy ${duration(one.busy)}`
        : `${duration(one.busy)}, ${((one.begin - this.end) / 1e6).toFixed(2)} s`,
      `batch size ${short(one.batch / one.count)}${version.frame.max_batch_size ? ` of ${version.frame.max_batch_size}` : ""}`,
      ...reasons.map((reason) => `${reason}: ${REASONS[reason]?.[1] ?? reason}`),
      `oldest request waited ${duration(one.waited)}`,
    ];
    setText(this.tip, lines.join("\n"));
    if (this.cursor) this.tip.setAttribute("role", "status");
    else this.tip.removeAttribute("role");
    const x = this.cursor ? Math.max(this.left, this.x(one.begin)) : this.pointer.x;
    const left = Math.min(x + 14, this.box.clientWidth - this.tip.offsetWidth - 8);
    this.tip.style.left = `${Math.max(8, left)}px`;
    const below = found.top + found.height + 4;
    const fits = below + this.tip.offsetHeight < this.box.scrollTop + this.box.clientHeight;
    this.tip.style.top = `${fits ? below : Math.max(this.box.scrollTop, found.top - this.tip.offsetHeight - 4)}px`;
  }

  /** A frame around the selected bar. */
  mark(paint) {
    const found = this.selected();
    if (!found) return;
    const x = Math.max(this.left, this.x(found.bar.begin));
    const wide = Math.max(3, this.x(found.bar.end) - x);
    paint.strokeStyle = this.palette.ink;
    paint.lineWidth = 1.5;
    paint.strokeRect(x - 1, found.top + 1, wide + 1, found.height - 6);
  }

  /** The picture in words. */
  describe() {
    const versions = [...this.server.versions.values()];
    const parts = versions.flatMap((version) =>
      [...version.instances.keys()].map((name) => `${name} ${percent(version.busy(name))} busy`),
    );
    const shown = parts.slice(0, 12).join(", ");
    return `Timeline of executions of ${parts.length} instances: ${shown}${parts.length > 12 ? ", and others" : ""}`;
  }
}
