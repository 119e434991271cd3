// Numbers as people read them. Pure functions.

const THIN = "\u202f";

/** Three digits or so: 0, 0.4, 12.3, 456, 7.8 k. */
function short(number) {
  if (!Number.isFinite(number)) return "–";
  const size = Math.abs(number);
  if (size >= 1e9) return `${(number / 1e9).toFixed(1)}${THIN}G`;
  if (size >= 1e6) return `${(number / 1e6).toFixed(1)}${THIN}M`;
  if (size >= 1e4) return `${(number / 1e3).toFixed(1)}${THIN}k`;
  if (size >= 100 || Number.isInteger(number)) return number.toFixed(0);
  return number.toFixed(size >= 10 ? 1 : 2).replace(/\.?0+$/, "") || "0";
}

/** A duration given in microseconds. */
function duration(us) {
  if (!Number.isFinite(us)) return "–";
  if (us < 1e3) return `${short(Math.round(us))}${THIN}µs`;
  if (us < 1e6) return `${short(us / 1e3)}${THIN}ms`;
  return `${short(us / 1e6)}${THIN}s`;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${short(count)}${THIN}${units[unit]}`;
}

function percent(share) {
  return Number.isFinite(share) ? `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}${THIN}%` : "–";
}
