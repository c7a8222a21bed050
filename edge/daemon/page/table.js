// The table of VMs: deadline misses first. Names are text, never HTML.

import * as words from "./words.js";

/**
 * @typedef {object} Vm
 * @property {string} key @property {string} name @property {string} state
 * @property {number} slice @property {number} period @property {number} vcpus
 * @property {number} served @property {boolean} exact @property {boolean} byUse
 * @property {number} revision
 * @property {null|{over: number, promised: number, due: number, used: number, deadlines: number,
 *   missed: number}} recent
 * @property {null|{deadlines: number, missed: number}} total
 * @property {number|null} ready
 * @property {null|{hour: number, currency: string, total: string}} cost
 * @property {string} owner @property {string} binding @property {string|null} why
 * @property {boolean} isHidden
 */

/** Converts a row of the service, whose values have a fixed order, to an object. @param {any[]} row @returns {Vm} */
export function vm(row, index = 0) {
  const [name, state, slice, period, vcpus, served, exact, byUse, revision, recent, total, ready,
    cost, owner, binding, why] = row;
  const isHidden = binding === "another VM";
  return {
    key: isHidden ? `${name} ${index}` : name,
    name, state, slice, period, vcpus, served, exact, byUse, revision, ready, owner, binding, why,
    isHidden,
    // Each change of a reservation restarts these numbers. Less than a second is not shown.
    recent: recent && recent[0] >= 1e9 && {
      over: recent[0], promised: recent[1], due: recent[2], used: recent[3], deadlines: recent[4],
      missed: recent[5],
    },
    total: total && { deadlines: total[0], missed: total[1] },
    cost: cost && { hour: cost[0], currency: cost[1], total: cost[2] },
  };
}

/** Makes an element. Texts become text nodes. */
export function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (name === "tip") made.dataset.tip = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

const reserved = (/** @type {Vm} */ vm) => (vm.slice / vm.period) * vm.vcpus;
const delivered = (/** @type {Vm} */ vm) => (vm.recent ? vm.recent.used / vm.recent.over : null);

/** Columns of the table: heading, sort value, text of a cell, and sentence about a cell. */
const COLUMNS = [
  {
    head: "VM", sort: (vm) => vm.name, text: (vm) => vm.name,
    tip: (vm) => `${vm.name} is bound to ${vm.binding} and belongs to ${vm.owner}.`,
  },
  {
    head: "Missed", about: "Periods of the last seconds in which the VM received less than its entitlement.",
    sort: (vm) => -(vm.recent?.missed ?? 0) * 1e9 - (vm.total?.missed ?? 0),
    text: (vm) => (vm.recent ? String(vm.recent.missed) : "–"),
    kind: (vm) => (vm.recent?.missed ? "miss" : ""),
    tip: (vm) => vm.recent
      ? `${vm.name} missed ${vm.recent.missed} of ${words.count(vm.recent.deadlines, "deadline")} in the last ${words.span(vm.recent.over)}.`
      : `Nothing was measured for ${vm.name} yet.`,
  },
  {
    head: "Missed ever", about: "Missed periods since the daemon started.",
    sort: (vm) => -(vm.total?.missed ?? 0), text: (vm) => (vm.total ? String(vm.total.missed) : "–"),
    tip: (vm) => vm.total
      ? `${vm.name} missed ${vm.total.missed} of ${words.count(vm.total.deadlines, "deadline")} since the daemon started.`
      : `Nothing was measured for ${vm.name} yet.`,
  },
  {
    head: "Reserved", about: "CPU time that is reserved for all vCPUs together, in percent of one CPU.",
    sort: (vm) => -reserved(vm), text: (vm) => words.percent(reserved(vm), 1),
    tip: (vm) => `Each of ${words.count(vm.vcpus, "vCPU")} of ${vm.name} may use ${words.span(vm.slice)} in every ${words.span(vm.period)}${vm.exact ? ", and no more" : ", and more if CPU time is free"}.`,
  },
  {
    head: "Delivered", about: "CPU time that the VM used in the last seconds, in percent of one CPU.",
    sort: (vm) => -(delivered(vm) ?? -1), text: (vm) => words.percent(delivered(vm), 1),
    tip: (vm) => vm.recent
      ? `${vm.name} used ${words.span(vm.recent.used)} of CPU time in ${words.span(vm.recent.over)}, and was entitled to ${words.span(vm.recent.due)}.`
      : `Nothing was measured for ${vm.name} yet.`,
  },
  {
    head: "Of reservation", about: "CPU time used, in percent of the CPU time reserved. If this is far below 100 %, the VM pays for time that it does not need.",
    sort: (vm) => -(vm.recent ? vm.recent.used / (vm.recent.promised || 1) : -1),
    text: (vm) => (vm.recent ? words.percent(vm.recent.used, vm.recent.promised) : "–"),
    bar: (vm) => (vm.recent && vm.recent.promised ? vm.recent.used / vm.recent.promised : 0),
    tip: (vm) => vm.recent
      ? `${vm.name} used ${words.span(vm.recent.used)} of ${words.span(vm.recent.promised)} reserved in the last ${words.span(vm.recent.over)}.`
      : `Nothing was measured for ${vm.name} yet.`,
  },
  {
    head: "CPU ready", about: "Part of the last seconds in which a vCPU was runnable and waited for a CPU.",
    sort: (vm) => -(vm.ready ?? -1), text: (vm) => words.ppm(vm.ready),
    tip: (vm) => `A vCPU of ${vm.name} was runnable but not running for ${words.ppm(vm.ready)} of the last 5 s.`,
  },
  {
    head: "Cost", about: "Price of the reservation for an hour.", isCost: true,
    sort: (vm) => -(vm.cost?.hour ?? -1),
    text: (vm) => (vm.cost ? `${words.money(vm.cost.hour, vm.cost.currency)}/h` : "–"),
    tip: (vm) => vm.cost
      ? `The reservation of ${vm.name} costs ${words.money(vm.cost.hour, vm.cost.currency)} an hour, used or not, and ${vm.cost.total} ${vm.cost.currency} so far.`
      : "This daemon has no prices.",
  },
  {
    head: "State", sort: (vm) => vm.state, text: (vm) => vm.state,
    tip: (vm) => `${vm.name}: ${words.about(vm.state)}${vm.why ? ` (${vm.why})` : ""}.`,
  },
];

export class Table {
  /** @param {HTMLElement} head @param {HTMLElement} body @param {(vm: Vm) => void} select */
  constructor(head, body, select) {
    this.body = body;
    this.select = select;
    this.sort = 1;
    this.isReverse = false;
    this.hasCosts = false;
    /** @type {Map<string, {row: HTMLElement, cells: HTMLElement[]}>} */
    this.rows = new Map();
    /** @type {Vm[]} */
    this.vms = [];
    this.selected = "";
    this.heads = COLUMNS.map((column, index) => {
      const sort = el("button", {
        type: "button", class: "sort", tip: column.about, onclick: () => this.sortBy(index),
      }, column.head);
      const cell = el("th", { scope: "col" }, sort);
      head.append(cell);
      return cell;
    });
    body.addEventListener("keydown", (event) => this.key(event));
    this.mark();
  }

  sortBy(index) {
    this.isReverse = this.sort === index && !this.isReverse;
    this.sort = index;
    this.mark();
    this.arrange();
  }

  mark() {
    this.heads.forEach((cell, index) => {
      const order = this.isReverse ? "descending" : "ascending";
      cell.setAttribute("aria-sort", index === this.sort ? order : "none");
    });
  }

  key(event) {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const row = event.target.closest("tr");
    const next = event.key === "ArrowDown" ? row?.nextElementSibling : row?.previousElementSibling;
    next?.querySelector("button")?.focus();
    event.preventDefault();
  }

  /** Returns the VMs in the order of the rows. @returns {Vm[]} */
  ordered() {
    const { sort } = COLUMNS[this.sort];
    const order = (a, b) => {
      const [x, y] = [sort(a), sort(b)];
      return (x < y ? -1 : x > y ? 1 : 0) * (this.isReverse ? -1 : 1) || (a.key < b.key ? -1 : 1);
    };
    return [...this.vms].sort(order);
  }

  /** @param {Vm[]} vms */
  show(vms) {
    this.vms = vms;
    this.hasCosts = vms.some((vm) => vm.cost);
    COLUMNS.forEach((column, index) => {
      if (column.isCost) this.heads[index].hidden = !this.hasCosts;
    });
    const present = new Set(vms.map((vm) => vm.key));
    for (const [key, { row }] of this.rows) {
      if (!present.has(key)) {
        row.remove();
        this.rows.delete(key);
      }
    }
    for (const vm of vms) this.update(vm);
    // Rows do not move under the pointer.
    if (!this.body.matches(":hover") && !this.body.contains(document.activeElement)) this.arrange();
    else for (const { row } of this.rows.values()) if (!row.parentNode) this.body.append(row);
  }

  arrange() {
    let at = this.body.firstElementChild;
    for (const vm of this.ordered()) {
      const row = this.rows.get(vm.key)?.row;
      if (!row) continue;
      if (row === at) at = at.nextElementSibling;
      else this.body.insertBefore(row, at);
    }
  }

  /** @param {Vm} vm */
  update(vm) {
    let made = this.rows.get(vm.key);
    if (!made) {
      const cells = COLUMNS.map((column, index) => {
        const cell = el("td", { "data-head": column.head });
        if (index === 0) {
          cell.append(vm.isHidden
            ? el("span", {}, vm.name) : el("button", { type: "button", class: "name" }, vm.name));
        } else {
          cell.append(el("span"));
          if (column.bar) cell.append(el("span", { class: "bar", "aria-hidden": "true" }, el("i")));
        }
        return cell;
      });
      const row = el("tr", {}, ...cells);
      row.addEventListener("click", () => {
        const now = this.vms.find((it) => it.key === vm.key);
        if (now && !now.isHidden) this.select(now);
      });
      made = { row, cells };
      this.rows.set(vm.key, made);
    }
    COLUMNS.forEach((column, index) => {
      const cell = made.cells[index];
      const text = column.text(vm);
      const shown = cell.firstElementChild;
      if (shown && shown.textContent !== text) shown.textContent = text;
      cell.dataset.tip = column.tip(vm);
      if (column.kind) cell.className = column.kind(vm);
      if (column.isCost) cell.hidden = !this.hasCosts;
      if (column.bar) {
        const bar = /** @type {HTMLElement} */ (cell.querySelector("i"));
        bar.style.width = `${Math.min(100, 100 * column.bar(vm))}%`;
        // Use beyond the reservation is a fault only under a hard limit.
      bar.className = vm.exact && column.bar(vm) > 1.05 ? "over" : "";
      }
    });
    this.markSelected(vm.key);
  }

  markSelected(key) {
    const row = this.rows.get(key)?.row;
    const is = key === this.selected;
    row?.classList.toggle("selected", is);
    const button = row?.querySelector("button");
    if (is) button?.setAttribute("aria-current", "true");
    else button?.removeAttribute("aria-current");
  }

  /** @param {string} key */
  choose(key) {
    const before = this.selected;
    this.selected = key;
    this.markSelected(before);
    this.markSelected(key);
  }
}
