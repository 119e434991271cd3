// Small parts of the document. Texts become text nodes, never markup.

const $ = (id) => document.getElementById(id);

/** An element with properties, attributes (`aria-…`, `data-…`, `role`) and children. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

/** Changes a text only if it differs, so that what is selected stays selected. */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const SVG = "http://www.w3.org/2000/svg";

/** A line of values over time. */
class Sparkline {
  constructor(label) {
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("class", "spark");
    this.svg.setAttribute("viewBox", "0 0 100 24");
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("aria-hidden", "true");
    this.area = document.createElementNS(SVG, "path");
    this.area.setAttribute("class", "area");
    this.line = document.createElementNS(SVG, "path");
    this.svg.append(this.area, this.line);
    this.label = label;
  }

  set(values, most = Math.max(...values, 0)) {
    if (values.length < 2) return;
    const step = 100 / (values.length - 1);
    const y = (value) => (most > 0 ? 22 - (20 * value) / most : 22).toFixed(1);
    const points = values.map((value, at) => `${(at * step).toFixed(1)} ${y(value)}`);
    this.line.setAttribute("d", `M${points.join("L")}`);
    this.area.setAttribute("d", `M0 24L${points.join("L")}L100 24Z`);
  }
}

/** A share as a bar. */
function meter(share) {
  const inner = make("i");
  inner.style.width = `${Math.round(100 * Math.min(1, Math.max(0, share || 0)))}%`;
  return make("div", { className: "meter", "aria-hidden": "true" }, inner);
}

/** The latest values of a rate, two for each second. */
function rates(samples, read) {
  const values = [];
  for (let at = 1; at < samples.length; at += 1) {
    const seconds = (samples[at].at - samples[at - 1].at) / 1e6;
    values.push(seconds > 0 ? (read(samples[at].frame) - read(samples[at - 1].frame)) / seconds : 0);
  }
  return values;
}
