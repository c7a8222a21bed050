// Numbers as words: times, shares, periods. All functions are pure.

const UNITS = [["ns", 1], ["us", 1e3], ["ms", 1e6], ["s", 1e9], ["min", 6e10], ["h", 3.6e12]];

/** @param {number} ns */
export function span(ns) {
  let [unit, size] = UNITS[0];
  for (const [name, length] of UNITS) if (ns >= Number(length)) [unit, size] = [name, length];
  const value = ns / Number(size);
  return `${rounded(value)} ${unit}`;
}

/** A time as the service reads it, such as `2500us`. @param {number} ns */
export function length(ns) {
  return ns % 1e6 === 0 ? `${ns / 1e6}ms` : ns % 1e3 === 0 ? `${ns / 1e3}us` : `${ns}ns`;
}

/** @param {number} value */
export function rounded(value) {
  const digits = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return String(Number(value.toFixed(digits)));
}

/** @param {number|null|undefined} part @param {number} whole */
export function percent(part, whole) {
  return part == null || !whole ? "–" : `${rounded((100 * part) / whole)} %`;
}

/** Millionths of a CPU as percent. @param {number|null|undefined} ppm */
export function ppm(ppm) {
  return ppm == null ? "–" : `${rounded(ppm / 1e4)} %`;
}

/** @param {number} millionths @param {string} currency */
export function money(millionths, currency) {
  const value = millionths / 1e6;
  return `${value >= 0.1 || value === 0 ? value.toFixed(2) : value.toPrecision(2)} ${currency}`;
}

/** Returns the kind of work that a period suits. @param {number} ns */
export function suits(ns) {
  const ms = ns / 1e6;
  if (ms <= 2) return "sound and motor control";
  if (ms <= 5) return "a voice call";
  if (ms <= 12) return "a game or a desktop";
  if (ms <= 25) return "a film or a web server";
  if (ms <= 60) return "a database or a shop";
  if (ms <= 150) return "a build that people wait for";
  return "batch work that nobody waits for";
}

/** @param {number} count @param {string} one @param {string} [many] */
export function count(count, one, many) {
  return `${count} ${count === 1 ? one : (many ?? `${one}s`)}`;
}

/** Time of day. @param {number} ns since 1970 */
export function clock(ns) {
  return new Date(ns / 1e6).toLocaleTimeString([], { hour12: false });
}

/** @param {string} state */
export function about(state) {
  /** @type {Record<string, string>} */
  const words = {
    waiting: "the VM is not running; the capacity stays reserved",
    active: "the VM receives the reserved CPU time",
    paused: "the vCPUs are stopped until resumed; the capacity stays reserved",
    partial: "some vCPUs of the VM are not scheduled",
    contested: "another program changed threads of the VM; nothing is enforced until the change is undone",
    suspended: "the VM monitor has suspended the guest; the capacity stays reserved",
    held: "the capacity is reserved for a gang that has not begun",
    ended: "the reservation has ended",
  };
  return words[state] ?? state;
}
