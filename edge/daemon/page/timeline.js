// The timeline: lanes of the last seconds on a canvas. A model stores columns, and `paint` draws a
// model. Neither depends on the page, so that reports use the same code.

/** Maximum number of columns that are shown, and that are kept. */
const SHOWN = 500;
const KEPT = 640;

const OTHERS = 0;

/** Heights in CSS pixels. */
const CPU_LANE = 34;
const VM_LANE = 20;
const RULER = 18;

/** Seconds between two lines of the ruler. */
const SPACES = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300];

/** Maximum number of VM lanes. */
const MOST_LANES = 40;

export class Timeline {
  constructor() {
    /** Number of the first column. */
    this.first = 0;
    this.step = 20e6;
    /** @type {number[][]} CPU, vCPU, part, and so on. */
    this.columns = [];
    /** @type {Map<number, [number, number][]>} */
    this.missed = new Map();
    /** @type {number[]} */
    this.cpus = [];
    /** @type {string[]} */
    this.vcpus = [];
  }

  /** Number after the last column. */
  get end() {
    return this.first + this.columns.length;
  }

  /** @param {any} part as the service sends it */
  add(part) {
    this.step = part.step_ns;
    this.cpus = part.cpus;
    if (part.vcpus) this.vcpus = part.vcpus;
    if (part.first !== this.end) {
      this.columns = [];
      this.missed.clear();
      this.first = part.first;
    }
    this.columns.push(...part.columns);
    for (const [index, vcpu, count] of part.missed) {
      const at = part.first + index;
      this.missed.set(at, [...(this.missed.get(at) ?? []), [vcpu, count]]);
    }
    const surplus = this.columns.length - KEPT;
    if (surplus > 0) {
      this.columns.splice(0, surplus);
      this.first += surplus;
      for (const at of this.missed.keys()) if (at < this.first) this.missed.delete(at);
    }
  }
}

/** Returns the VM of a vCPU: the name without the number. @param {string} vcpu */
export function vmOf(vcpu) {
  return vcpu.replace(/\.\d+$/, "");
}

/** Returns the colour of a vCPU. Successive numbers have hues that differ much. */
export function colour(vcpu, isDark) {
  if (vcpu === OTHERS) return isDark ? "#4a5560" : "#c3cad1";
  return `hsl(${Math.round((vcpu * 137.508 + 190) % 360)} ${isDark ? "52% 58%" : "58% 50%"})`;
}

/** Returns the height of the timeline in CSS pixels. */
export function heightOf(model, order, vms) {
  const lanes = order === "cpu" ? model.cpus.length * CPU_LANE : lanesOf(model, vms).length * VM_LANE;
  return Math.max(60, lanes + RULER);
}

/** Returns the names of the VMs that have a lane, in the order of the table. */
function lanesOf(model, vms) {
  const present = new Set(model.vcpus.slice(1).map((name, index) => name && vmOf(model.vcpus[index + 1])));
  const named = vms.filter((name) => present.has(name) || model.vcpus.includes(name));
  return named.slice(0, MOST_LANES);
}

/**
 * Draws a model.
 * @param {CanvasRenderingContext2D} context
 * @param {Timeline} model
 * @param {{width: number, height: number, order: string, end: number, isDark: boolean,
 *   ink: string, line: string, vms: string[], selected: string}} view
 */
export function paint(context, model, view) {
  const { width, height, order, end, ink, line } = view;
  context.clearRect(0, 0, width, height);
  const label = Math.min(150, width * 0.24);
  const scale = (width - label) / Math.min(SHOWN, (width - label) / 1.2);
  const shown = (width - label) / scale;
  const x = (column) => label + (column - (end - shown)) * scale;
  const first = Math.max(model.first, Math.floor(end - shown));
  const last = Math.min(model.end, Math.ceil(end));
  const area = { label, scale, x, first, last };
  context.font = "12px system-ui, 'Liberation Sans', sans-serif";
  context.textBaseline = "middle";
  ruler(context, model, view, area);
  context.save();
  context.beginPath();
  context.rect(label, 0, width - label, height);
  context.clip();
  const names = order === "cpu" ? cpuLanes(context, model, view, area) : vmLanes(context, model, view, area);
  context.restore();
  context.fillStyle = ink;
  const lane = order === "cpu" ? CPU_LANE : VM_LANE;
  names.forEach((name, index) => {
    const y = RULER + index * lane;
    context.strokeStyle = line;
    context.beginPath();
    context.moveTo(0, y + lane - 0.5);
    context.lineTo(width, y + lane - 0.5);
    context.stroke();
    context.font = `${name === view.selected ? "bold " : ""}12px system-ui, 'Liberation Sans', sans-serif`;
    context.fillText(clipped(context, name, label - 10), 4, y + lane / 2);
  });
}

function clipped(context, text, width) {
  let shown = text;
  while (shown.length > 1 && context.measureText(shown).width > width) shown = shown.slice(0, -1);
  return shown === text ? text : `${shown.slice(0, -1)}…`;
}

/** Draws the ruler: seconds before the right edge. */
function ruler(context, model, { height, ink, line, end }, { x, label }) {
  const second = 1e9 / model.step;
  const wide = x(1) - x(0);
  const every = SPACES.find((it) => it * second * wide >= 44) ?? 600;
  context.fillStyle = ink;
  context.strokeStyle = line;
  context.textAlign = "center";
  for (let step = 1; x(end - step * every * second) > label + 12; step += 1) {
    const at = Math.round(x(end - step * every * second)) + 0.5;
    context.beginPath();
    context.moveTo(at, RULER - 3);
    context.lineTo(at, height);
    context.stroke();
    if (step % 2 === 0) context.fillText(`-${Number((step * every).toFixed(3))} s`, at, RULER / 2);
  }
  context.textAlign = "left";
}

/** Fills all rectangles of a colour at once, which costs much less than one by one. */
function fill(context, paths, isDark) {
  for (const [vcpu, path] of paths) {
    context.fillStyle = colour(vcpu, isDark);
    context.fill(path);
  }
}

function path(paths, vcpu) {
  let made = paths.get(vcpu);
  if (!made) paths.set(vcpu, (made = new Path2D()));
  return made;
}

function cpuLanes(context, model, view, { x, scale, first, last }) {
  const paths = new Map();
  const tall = CPU_LANE - 6;
  const filled = new Float64Array(model.cpus.length);
  const add = (at, cpu, vcpu, part) => {
    const high = (tall * Math.min(part, 1000 - filled[cpu])) / 1000;
    if (high < 0.5) return;
    const base = RULER + (cpu + 1) * CPU_LANE - 3 - (tall * filled[cpu]) / 1000;
    path(paths, vcpu).rect(x(at), base - high, scale + 0.3, high);
    filled[cpu] += part;
  };
  for (let at = first; at < last; at += 1) {
    filled.fill(0);
    const column = model.columns[at - model.first];
    // Other threads are drawn above the vCPUs, so that the vCPUs stay in place.
    for (const isOther of [false, true]) {
      for (let run = 0; run < column.length; run += 3) {
        if ((column[run + 1] === OTHERS) === isOther) add(at, column[run], column[run + 1], column[run + 2]);
      }
    }
  }
  fill(context, paths, view.isDark);
  // A deadline miss belongs to no CPU, so its mark is on the ruler.
  marks(context, model, view, { x, first, last }, () => 2);
  return model.cpus.map((cpu) => `CPU ${cpu}`);
}

function vmLanes(context, model, view, { x, scale, first, last }) {
  const names = lanesOf(model, view.vms);
  const lane = new Map(names.map((name, index) => [name, index]));
  const laneOf = model.vcpus.map((name) => lane.get(vmOf(name)) ?? lane.get(name) ?? -1);
  const paths = new Map();
  const tall = VM_LANE - 4;
  const sums = new Float64Array(names.length);
  const colours = new Int32Array(names.length);
  for (let at = first; at < last; at += 1) {
    sums.fill(0);
    const column = model.columns[at - model.first];
    for (let run = 0; run < column.length; run += 3) {
      const index = column[run + 1] === OTHERS ? -1 : laneOf[column[run + 1]];
      if (index < 0 || index === undefined) continue;
      sums[index] += column[run + 2];
      if (!colours[index]) colours[index] = column[run + 1];
    }
    sums.forEach((sum, index) => {
      const high = (tall * Math.min(1000, sum)) / 1000;
      if (high < 0.5) return;
      const base = RULER + (index + 1) * VM_LANE - 2;
      path(paths, colours[index]).rect(x(at), base - high, scale + 0.3, high);
    });
  }
  fill(context, paths, view.isDark);
  marks(context, model, view, { x, first, last }, (vcpu) =>
    laneOf[vcpu] < 0 ? -20 : RULER + laneOf[vcpu] * VM_LANE + 1);
  return names;
}

/** Draws red marks for missed deadlines. */
function marks(context, model, view, { x, first, last }, top) {
  context.fillStyle = view.isDark ? "#ff6b5e" : "#c4160a";
  for (const [at, missed] of model.missed) {
    if (at < first || at >= last) continue;
    for (const [vcpu] of missed) {
      const y = top(vcpu);
      context.beginPath();
      context.moveTo(x(at) - 4, y);
      context.lineTo(x(at) + 4, y);
      context.lineTo(x(at), y + 7);
      context.fill();
    }
  }
}

/** Scrolls a timeline on a canvas smoothly, a short time behind the newest column. */
export class Scroller {
  /** @param {HTMLCanvasElement} canvas @param {() => any} about colours, order and names */
  constructor(canvas, about) {
    this.canvas = canvas;
    this.about = about;
    this.model = new Timeline();
    this.end = 0;
    this.isHeld = false;
    this.before = 0;
    this.isSeen = true;
    new IntersectionObserver((seen) => {
      this.isSeen = seen.some((entry) => entry.isIntersecting);
    }).observe(canvas);
    const frame = (/** @type {number} */ now) => {
      this.frame(now);
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  /** @param {number} now in milliseconds */
  frame(now) {
    const passed = Math.min(1_000, now - this.before);
    this.before = now;
    if (!this.isHeld) {
      const last = this.model.end;
      // If a message is late, the timeline stops instead of jumping.
      this.end = Math.min(last, this.end + (passed * 1e6) / this.model.step);
      if (last - this.end > 40) this.end = last - 14;
    }
    if (this.isSeen && !document.hidden) this.draw();
  }

  draw() {
    const { canvas, model } = this;
    const about = this.about();
    const width = canvas.clientWidth;
    const height = heightOf(model, about.order, about.vms);
    const ratio = window.devicePixelRatio || 1;
    const [wide, tall] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== wide || canvas.height !== tall) {
      canvas.width = wide;
      canvas.height = tall;
      canvas.style.height = `${height}px`;
    }
    const context = canvas.getContext("2d");
    if (!context || !width) return;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint(context, model, { ...about, width, height, end: this.end });
  }
}
