// Lists of the page: incidents with culprits, events, and VMs without a reservation.

import { Refused, ask, once, reservation } from "./api.js";
import { culpritLines } from "./steer.js";
import { el } from "./table.js";
import * as words from "./words.js";

const MOST_EVENTS = 100;
const MOST_INCIDENTS = 20;

const byId = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** @param {number} ns */
function time(ns) {
  return el("time", { datetime: new Date(ns / 1e6).toISOString() }, words.clock(ns));
}

export class Log {
  constructor() {
    this.list = byId("log");
    this.last = 0;
  }

  async load() {
    try {
      const events = await ask("GET", "/v1/log?limit=50");
      for (const event of events.reverse()) this.add(event);
      if (!events.length) this.list.replaceChildren(el("li", { class: "quiet" }, "No events yet."));
    } catch {
      byId("log-box").hidden = true;
    }
  }

  /** @param {any} event */
  add(event) {
    if (event.seq <= this.last) return;
    if (!this.last) this.list.replaceChildren();
    this.last = event.seq;
    const name = event.name ? `${event.name}: ` : "";
    const changed = event.before && event.after && event.before !== event.after;
    const terms = changed ? `${event.before} → ${event.after}` : event.after ?? "";
    this.list.prepend(el("li", { tip: `Event ${event.seq}, by ${event.principal}.` },
      time(event.at_ns), `${name}${event.outcome} `, el("span", { class: "quiet" }, terms)));
    while (this.list.children.length > MOST_EVENTS) this.list.lastElementChild?.remove();
  }
}

export class Incidents {
  constructor() {
    this.list = byId("incidents");
    this.newest = -1;
  }

  async load() {
    let incidents;
    try {
      incidents = await ask("GET", "/v1/incidents");
    } catch (error) {
      const says = error instanceof Refused ? error.message : String(error);
      return this.list.replaceChildren(el("li", { class: "quiet" }, says));
    }
    const newest = incidents[0]?.id ?? 0;
    if (newest === this.newest) return;
    this.newest = newest;
    const rows = incidents.slice(0, MOST_INCIDENTS).map((it) => this.row(it));
    if (!rows.length) rows.push(el("li", { class: "quiet" }, "No deadline was missed."));
    this.list.replaceChildren(...rows);
  }

  /** @param {any} it */
  row(it) {
    const why = el("span", { class: "quiet" });
    const button = el("button", {
      type: "button", "aria-label": `Why did ${it.name} miss deadlines?`,
      onclick: () => this.why(it, why),
    }, "Why?");
    return el("li", { tip: `Incident ${it.id}: ${words.count(it.missed, "missed deadline")} of ${it.name}.` },
      time(it.at_ns), `${it.name} missed ${words.count(it.missed, "deadline")} `, button, " ", why);
  }

  /** Shows the culprits from the recording of an incident: 1 s before and 1 s after the misses. */
  async why(it, shown) {
    try {
      const lines = culpritLines(await ask("GET", `/v1/incidents/${it.id}`));
      shown.textContent = lines.join(" ");
    } catch (error) {
      shown.textContent = error instanceof Refused ? error.message : String(error);
    }
  }
}

/** Returns a valid reservation name for a VM. @param {any} machine */
export function nameFor(machine) {
  const text = (machine.name || machine.binding).toLowerCase().replace(/[^a-z0-9._-]+/g, "-");
  return text.replace(/^[^a-z0-9]+/, "").slice(0, 63) || `pid-${machine.pid}`;
}

export class Found {
  /** @param {{say: any, fail: any, confirm: any, mayChange: () => boolean, chosen: (name: string) => void}} page */
  constructor(page) {
    this.page = page;
    this.list = byId("found");
    byId("find").addEventListener("click", () => void this.load());
  }

  async load() {
    byId("found-box").hidden = !this.page.mayChange();
    if (!this.page.mayChange()) return;
    let machines;
    try {
      machines = await ask("GET", "/v1/machines");
    } catch (error) {
      return this.page.fail(error);
    }
    const free = machines.filter((it) => !it.reserved && !it.why && it.binding !== "another VM");
    const rows = free.slice(0, 50).map((it) => el("li", { tip: `${it.binding}, a ${it.kind} of uid ${it.uid}.` },
      el("span", {}, it.name || it.binding), el("span", { class: "quiet" },
        `${it.kind}, ${words.count(it.vcpus.length || 1, "vCPU")}, uses ${words.ppm(it.cpu_ppm)}`),
      el("button", {
        type: "button", "aria-label": `Reserve for ${it.name || it.binding}`,
        onclick: () => this.reserve(it),
      }, "Reserve")));
    if (!rows.length) rows.push(el("li", { class: "quiet" }, "No other VM was found."));
    this.list.replaceChildren(...rows);
  }

  /** @param {any} machine */
  async reserve(machine) {
    const name = nameFor(machine);
    const says = "10 % of a CPU for each vCPU: 1 ms in every 10 ms, and more if CPU time is free. The sliders change the reservation.";
    if (!(await this.page.confirm(`Reserve for ${name}?`, says, "Reserve"))) return;
    try {
      const made = await ask("PUT", reservation(name),
        { slice: "1ms", period: "10ms", for: machine.binding }, once());
      this.page.say(`${name} is reserved.`, async () => {
        await ask("DELETE", reservation(name), undefined, { "if-match": `"${made.revision}"`, ...once() });
        this.page.say(`${name} is released.`);
      });
      this.page.chosen(name);
      void this.load();
    } catch (error) {
      this.page.fail(error);
    }
  }
}
