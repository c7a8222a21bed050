// The page: logs in, reads the stream, and passes the data to the lists and the table.

import { Refused, forget, hasToken, logOut, session, stream } from "./api.js";
import { Found, Incidents, Log } from "./lists.js";
import { Steer } from "./steer.js";
import { Table, el, vm } from "./table.js";
import { Scroller } from "./timeline.js";
import * as words from "./words.js";

const byId = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** Seconds for which a change can be undone with one click. */
const UNDO = 60;

const state = { role: "viewer", order: "cpu", chosen: "", undoTimer: 0 };

const page = {
  mayChange: () => state.role !== "viewer",
  /** Shows what was done, with a button for `undo`. @param {string} text @param {() => Promise<void>} [undo] */
  say(text, undo) {
    trouble("");
    byId("done").hidden = false;
    byId("done-says").textContent = text;
    const button = byId("undo");
    button.hidden = !undo;
    button.onclick = undo ? async () => {
      button.hidden = true;
      try { await undo(); } catch (error) { page.fail(error); }
    } : null;
    clearTimeout(state.undoTimer);
    state.undoTimer = window.setTimeout(() => { byId("done").hidden = true; }, (undo ? UNDO : 8) * 1e3);
  },
  /** @param {any} error */
  fail(error) {
    byId("done").hidden = true;
    if (error instanceof Refused && error.status === 401) return showLogin(error.message);
    if (error instanceof Refused && error.problem.type === "stale") {
      return trouble("Not changed: another client has changed this reservation. Check the reservation and try again.");
    }
    trouble(error instanceof Refused ? error.says : String(error.message ?? error));
  },
  /** @param {string} title @param {string} says @param {string} yes @returns {Promise<boolean>} */
  confirm(title, says, yes) {
    const dialog = /** @type {HTMLDialogElement} */ (byId("ask"));
    byId("ask-title").textContent = title;
    byId("ask-says").textContent = says;
    byId("ask-yes").textContent = yes;
    return new Promise((resolve) => {
      byId("ask-yes").onclick = () => dialog.close("yes");
      byId("ask-no").onclick = () => dialog.close("");
      dialog.returnValue = "";
      dialog.onclose = () => resolve(dialog.returnValue === "yes");
      dialog.showModal();
    });
  },
  /** @param {string} name */
  chosen(name) { state.chosen = name; },
};

const steer = new Steer(page);
const table = new Table(byId("vm-head"), byId("vm-rows"), (chosen) => {
  table.choose(chosen.key);
  steer.show(chosen);
  byId("steer").scrollIntoView({ block: "nearest" });
});
const log = new Log();
const incidents = new Incidents();
const found = new Found(page);
const dark = matchMedia("(prefers-color-scheme: dark)");
const scroller = new Scroller(/** @type {HTMLCanvasElement} */ (byId("lanes")), () => {
  const style = getComputedStyle(document.documentElement);
  return {
    order: state.order, isDark: dark.matches, ink: style.getPropertyValue("--ink"),
    line: style.getPropertyValue("--line"), vms: laneNames, selected: table.selected,
  };
});
/** @type {string[]} */
let laneNames = [];

/** @param {string} says */
function trouble(says) {
  byId("trouble").hidden = !says;
  byId("trouble").textContent = says;
}

/** @param {string} why */
function showLogin(why) {
  forget();
  byId("board").hidden = true;
  byId("session").hidden = true;
  byId("login").hidden = false;
  byId("login-why").textContent = why;
}

/** @param {any} host */
function showHost(host) {
  byId("host").textContent = host.name;
  document.title = `${host.name}: Slackline`;
  const rows = host.cpus.map((cpu) => {
    const part = cpu.promised_ppm / cpu.capacity_ppm;
    const bar = el("i", { class: cpu.overload ? "over" : "" });
    bar.style.width = `${Math.min(100, 100 * part)}%`;
    const free = words.ppm(cpu.capacity_ppm - cpu.promised_ppm);
    return el("li", {
      tip: `${words.ppm(cpu.promised_ppm)} of CPU ${cpu.cpu} is reserved of at most ${words.ppm(cpu.capacity_ppm)}; dispatching takes ${words.ppm(cpu.overhead_ppm)}.`,
    }, `CPU ${cpu.cpu}: ${words.ppm(cpu.promised_ppm)} reserved, ${free} free`,
    el("span", { class: "bar", "aria-hidden": "true" }, bar));
  });
  byId("cpus").replaceChildren(...rows);
  const over = host.cpus.filter((cpu) => cpu.overload).map((cpu) => cpu.cpu);
  if (over.length) trouble(`CPU ${over.join(", ")} cannot deliver its reservations: dispatching takes too much CPU time.`);
}

/** @param {any[]} rows */
function showVms(rows) {
  const vms = rows.map((row, index) => vm(row, index));
  table.show(vms);
  laneNames = table.ordered().map((it) => it.name);
  byId("no-vms").hidden = vms.length > 0;
  const missed = vms.filter((it) => it.recent?.missed).length;
  byId("vms-count").textContent = vms.length ? `${vms.length}, ${missed || "none"} with deadline misses now` : "";
  if (state.chosen) {
    const chosen = vms.find((it) => it.name === state.chosen);
    if (chosen) {
      state.chosen = "";
      table.select(chosen);
    }
  }
  const steered = vms.find((it) => it.key === steer.vm?.key);
  if (steered) steer.update(steered);
  else if (steer.vm) steer.show(null);
}

/** @param {string} kind @param {any} data */
function receive(kind, data) {
  if (kind === "columns") scroller.model.add(data);
  else if (kind === "vms") showVms(data);
  else if (kind === "host") showHost(data);
  else if (kind === "event") log.add(data);
}

function buttons() {
  const orders = { cpu: byId("by-cpu"), vm: byId("by-vm") };
  for (const [order, button] of Object.entries(orders)) {
    button.addEventListener("click", () => {
      state.order = order;
      for (const [it, other] of Object.entries(orders)) other.setAttribute("aria-pressed", String(it === order));
    });
  }
  byId("hold").addEventListener("click", () => {
    scroller.isHeld = !scroller.isHeld;
    byId("hold").setAttribute("aria-pressed", String(scroller.isHeld));
  });
  byId("log-out").addEventListener("click", async () => {
    await logOut();
    location.reload();
  });
}

/** Shows the sentence about a number that has the pointer or the focus. */
function tips() {
  const tip = byId("tip");
  const show = (/** @type {Event} */ event) => {
    const of = /** @type {Element} */ (event.target).closest?.("[data-tip]");
    const says = of instanceof HTMLElement ? of.dataset.tip : "";
    tip.hidden = !says;
    if (!says || !of) return;
    tip.textContent = says;
    const box = of.getBoundingClientRect();
    const left = Math.max(4, Math.min(box.left, innerWidth - tip.offsetWidth - 4));
    const below = box.bottom + 6 + tip.offsetHeight < innerHeight;
    tip.style.left = `${left}px`;
    tip.style.top = `${below ? box.bottom + 6 : box.top - tip.offsetHeight - 6}px`;
  };
  document.addEventListener("pointerover", show);
  document.addEventListener("focusin", show);
  document.addEventListener("focusout", () => { tip.hidden = true; });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
}

async function follow() {
  for (;;) {
    try {
      await stream(receive, new AbortController().signal);
      trouble("The connection was closed; trying again.");
    } catch (error) {
      if (error instanceof Refused && error.status === 401) return showLogin(error.message);
      trouble(error instanceof Refused ? error.says : "The service does not answer; trying again.");
    }
    await new Promise((resolve) => setTimeout(resolve, 1_000));
    try {
      state.role = (await session()).role;
      trouble("");
    } catch (error) {
      if (error instanceof Refused && error.status === 401) return showLogin(error.message);
    }
  }
}

async function begin() {
  if (!hasToken()) return showLogin("This page shows nothing without a session.");
  try {
    state.role = (await session()).role;
  } catch (error) {
    if (error instanceof Refused && error.status === 401) return showLogin(error.message);
    byId("login").hidden = false;
    byId("login-why").textContent = error instanceof Refused ? error.says : "The service does not answer.";
    return;
  }
  byId("board").hidden = false;
  byId("session").hidden = false;
  byId("role").textContent = state.role;
  void log.load();
  void incidents.load();
  void found.load();
  setInterval(() => void incidents.load(), 10_000);
  setInterval(() => { if (!document.hidden) void steer.culprits(); }, 5_000);
  await follow();
}

buttons();
tips();
window.addEventListener("hashchange", () => location.reload());
void begin();
