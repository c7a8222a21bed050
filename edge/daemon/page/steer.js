// The sliders of one VM: share and period, a preview while they move, and one change on release.

import { Refused, ask, once, reservation } from "./api.js";
import { el } from "./table.js";
import { vmOf } from "./timeline.js";
import * as words from "./words.js";

/** @typedef {import("./table.js").Vm} Vm */

/** Periods of the slider, in milliseconds. */
const PERIODS = [1, 2, 5, 10, 20, 30, 50, 100, 200, 500, 1000];

/** Length of the recording from which a preview predicts. */
const SINCE = "10s";

/** Time for which the service keeps a recording that it has loaded for this page, in milliseconds. */
const KEPT = 10_000;

/** Pause after a refusal for too many requests, in milliseconds. */
const PAUSE = 300;

const byId = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));
const input = (/** @type {string} */ id) => /** @type {HTMLInputElement} */ (document.getElementById(id));

export class Steer {
  /**
   * @param {{say: (text: string, undo?: () => Promise<void>) => void,
   *   fail: (error: any) => void, confirm: (title: string, says: string, yes: string) => Promise<boolean>,
   *   mayChange: () => boolean}} page
   */
  constructor(page) {
    this.page = page;
    /** @type {Vm|null} */
    this.vm = null;
    /** The VM when the sliders began to move, or null if they rest. @type {Vm|null} */
    this.base = null;
    this.periods = [];
    this.isByPointer = false;
    this.isAsking = false;
    this.isStale = false;
    this.isApplying = false;
    /** Time at which the service was last asked to load a recording. */
    this.preparedAt = -KEPT;
    /** Largest share that admission accepts, in thousandths of a vCPU. @type {number|null} */
    this.largest = null;
    this.limit = "";
    this.hasWhatif = true;
    for (const id of ["share", "period"]) this.listen(input(id));
    byId("steer").addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.base ? this.revert() : this.show(null);
      if (event.key === "Enter" && this.base && /** @type {Element} */ (event.target).matches("input")) {
        this.apply();
      }
    });
    this.pad = new Pad(this);
  }

  /** @param {HTMLInputElement} slider */
  listen(slider) {
    for (const event of ["pointerenter", "focus"]) slider.addEventListener(event, () => void this.prepare());
    slider.addEventListener("pointerdown", () => { this.isByPointer = true; });
    slider.addEventListener("keydown", () => { this.isByPointer = false; });
    slider.addEventListener("input", () => this.moved());
    // Keys move a slider in steps: only Enter applies them.
    slider.addEventListener("change", () => { if (this.isByPointer) this.apply(); });
  }

  /** Shows the sliders of a VM. @param {Vm|null} vm */
  show(vm) {
    this.base = null;
    this.vm = vm;
    this.largest = null;
    this.limit = "";
    byId("steer").hidden = !vm;
    byId("preview").replaceChildren();
    byId("culprits").replaceChildren();
    if (!vm) return;
    this.draw();
    this.idle();
    void this.culprits();
    void this.room();
    void this.prepare();
  }

  /** Updates the numbers of the VM. Sliders that the user has moved stay in place. @param {Vm} vm */
  update(vm) {
    this.vm = vm;
    if (!this.base && !this.isApplying) this.draw();
    this.drawVerbs();
  }

  /** Sets the sliders to the reservation. */
  draw() {
    const vm = /** @type {Vm} */ (this.vm);
    const own = vm.period / 1e6;
    this.periods = [...new Set([...PERIODS, own])].sort((a, b) => a - b);
    byId("steer-title").textContent = vm.name;
    const [share, period] = [input("share"), input("period")];
    period.max = String(this.periods.length - 1);
    share.value = String(Math.round((1000 * vm.slice) / vm.period));
    period.value = String(this.periods.indexOf(own));
    byId("handles").hidden = !this.page.mayChange();
    this.drawVerbs();
    this.drawWords();
  }

  /** Returns the parameters that the sliders show. */
  wanted() {
    const period = this.periods[Number(input("period").value)] * 1e6;
    const share = Number(input("share").value);
    const vm = this.base ?? this.vm;
    if (vm && period === vm.period && share === Math.round((1000 * vm.slice) / vm.period)) {
      return { share, period, slice: vm.slice };
    }
    return { share, period, slice: Math.round((share * period) / 1e6) * 1e3 };
  }

  drawWords() {
    const vm = /** @type {Vm} */ (this.vm);
    const { share, period, slice } = this.wanted();
    const each = vm.vcpus > 1 ? `each of ${vm.vcpus} vCPUs` : "its vCPU";
    byId("steer-words").textContent =
      `${vm.name} gets ${words.rounded(share / 10)} % of a CPU for ${each}: ` +
      `${words.span(slice)} in every ${words.span(period)}${vm.exact ? ", never more" : ""}.`;
    byId("share-out").textContent = `${words.rounded(share / 10)} % · ${words.span(slice)}`;
    byId("period-out").textContent = `every ${words.span(period)}`;
    byId("period-says").textContent =
      `Suits ${words.suits(period)}: the longest wait is ${words.span(2 * (period - slice))}.`;
    input("share").setAttribute("aria-valuetext",
      `${words.rounded(share / 10)} percent of a CPU, ${words.span(slice)} in every period`);
    input("period").setAttribute("aria-valuetext", `every ${words.span(period)}, for ${words.suits(period)}`);
    this.drawLimit();
  }

  drawLimit() {
    const says = byId("share-limit");
    says.textContent = this.largest == null ? ""
      : `At most ${words.rounded(this.largest / 10)} %: ${this.limit}`;
  }

  /** Moves the share slider back to the admission limit. Returns true if the share was above it. */
  stop() {
    const share = input("share");
    if (this.largest == null || Number(share.value) <= this.largest) return false;
    share.value = String(Math.max(1, Math.floor(this.largest)));
    this.pad.rumble();
    return true;
  }

  moved() {
    const vm = this.vm;
    if (!vm || this.isApplying) return;
    this.base ??= vm;
    this.stop();
    this.drawWords();
    void this.preview();
  }

  /**
   * Makes the service load and check the last seconds, which takes longer than a prediction. So the
   * first preview appears soon after a slider begins to move.
   */
  async prepare() {
    const isPrepared = performance.now() - this.preparedAt < KEPT;
    if (isPrepared || this.isAsking || this.base || !this.hasWhatif || !this.page.mayChange()) return;
    this.preparedAt = performance.now();
    this.isAsking = true;
    // The preview shows why no prediction is possible.
    await ask("POST", "/v1/whatif", { since: SINCE }).catch(() => null);
    this.isAsking = false;
    if (this.base) void this.preview();
  }

  /** Requests a preview of the sliders' position. At most one request is in flight at a time. */
  async preview() {
    if (this.isAsking) {
      this.isStale = true;
      return;
    }
    this.isAsking = true;
    do {
      this.isStale = false;
      await this.askOnce();
    } while (this.isStale && this.base);
    this.isAsking = false;
  }

  async askOnce() {
    const vm = this.base;
    if (!vm) return;
    const wanted = this.wanted();
    if (!this.hasWhatif) return this.withoutWhatif(wanted);
    const set = [{ name: vm.name, slice: words.length(wanted.slice), period: words.length(wanted.period) }];
    try {
      const answer = await ask("POST", "/v1/whatif", { since: SINCE, set });
      if (this.base !== vm) return;
      const limit = answer.largest?.find((it) => it.name === vm.name);
      if (limit) {
        this.largest = Math.floor((1000 * limit.slice_ns) / limit.period_ns);
        this.limit = limit.limit;
        if (this.stop()) this.isStale = true;
        this.drawWords();
      }
      this.drawPreview(answer, vm, wanted);
    } catch (error) {
      if (this.base !== vm) return;
      if (error instanceof Refused && error.problem.type === "no-such-page") {
        this.hasWhatif = false;
        return this.withoutWhatif(wanted);
      }
      if (error instanceof Refused && error.status === 429) {
        await new Promise((resolve) => setTimeout(resolve, PAUSE));
        this.isStale = true;
        return;
      }
      // If the recording allows no prediction, the user has made no mistake.
      const kind = error instanceof Refused && error.status === 503 ? "" : "bad";
      const text = error instanceof Refused ? error.says : String(error);
      this.drawLines([{ text: `${text}.`.replace("..", "."), kind }, this.costLine(wanted)]);
    }
  }

  withoutWhatif(wanted) {
    this.drawLines([{ text: "This service cannot predict.", kind: "" }, this.costLine(wanted)]);
  }

  /** Estimates the largest share from the available capacity, until a preview has the exact limit. */
  async room() {
    const vm = this.vm;
    if (!vm || !this.page.mayChange() || vm.isHidden) return;
    try {
      const room = await ask("GET", `/v1/room?period=${words.length(vm.period)}`);
      if (this.vm?.key !== vm.key || this.limit) return;
      const free = Math.max(0, ...room.cpus.map((it) => it.slice_ns));
      this.largest = Math.floor((1000 * (free + vm.slice)) / vm.period);
      this.limit = "that is about the share that is free on one CPU.";
      this.drawLimit();
    } catch { /* The preview shows the limit. */ }
  }

  /** @param {any} answer @param {Vm} vm @param {{share: number, period: number, slice: number}} wanted */
  drawPreview(answer, vm, wanted) {
    const lines = [];
    const isLess = wanted.slice / wanted.period < vm.slice / vm.period;
    if (!answer.gate?.passes) {
      const cause = answer.gate?.cause;
      lines.push({
        text: `Cannot predict from the last seconds${cause ? `, probably because ${cause}` : ""}.`, kind: "",
      });
    } else {
      const length = answer.recording?.length_ns ?? 1e10;
      const told = predicted(answer, vm.name, length);
      lines.push(...told);
      if (told.every((line) => !line.kind)) {
        lines.push(isLess
          ? { text: "No VM would have lost anything: the reservation is larger than needed.", kind: "good" }
          : { text: "No benefit: no VM would have had more CPU time, or waited less.", kind: "" });
      }
    }
    lines.push(this.costLine(wanted));
    this.drawLines(lines);
  }

  costLine(wanted) {
    const vm = /** @type {Vm} */ (this.base ?? this.vm);
    const [before, after] = [vm.slice / vm.period, wanted.slice / wanted.period];
    let text = `Reserves ${words.percent(after * vm.vcpus, 1)} of a CPU instead of ${words.percent(before * vm.vcpus, 1)}`;
    if (vm.cost) {
      const hour = (vm.cost.hour * after) / before;
      const about = wanted.period === vm.period ? "" : "about ";
      text += `, and costs ${about}${words.money(hour, vm.cost.currency)} an hour instead of ${words.money(vm.cost.hour, vm.cost.currency)}`;
    }
    return { text: `${text}.`, kind: "" };
  }

  /** @param {{text: string, kind: string}[]} lines */
  drawLines(lines) {
    const shown = lines.map((line) => el("p", { class: line.kind }, line.text));
    if (this.base && !this.isByPointer) {
      shown.push(el("p", {},
        el("button", { type: "button", class: "main", onclick: () => this.apply() }, "Apply"), " ",
        el("button", { type: "button", onclick: () => this.revert() }, "Cancel"),
        " Enter applies the change, Escape cancels it."));
    }
    byId("preview").replaceChildren(...shown);
  }

  idle() {
    const text = this.page.mayChange()
      ? "Move a slider to simulate the last 10 s with a change. The reservation changes when you release the slider."
      : "Your role may view reservations, but not change them.";
    byId("preview").replaceChildren(el("p", { class: "quiet" }, text));
  }

  revert() {
    this.base = null;
    if (this.vm) this.draw();
    this.idle();
  }

  /** Applies the sliders, if the reservation has not changed since they began to move. */
  async apply() {
    const base = this.base;
    if (!base || this.isApplying) return;
    const wanted = this.wanted();
    if (wanted.slice === base.slice && wanted.period === base.period) return this.revert();
    this.isApplying = true;
    try {
      const changed = await this.change(base, wanted.slice, wanted.period, base.revision);
      const share = words.rounded(wanted.share / 10);
      this.base = null;
      // The service drops a recording that was made before a change.
      this.preparedAt = -KEPT;
      this.page.say(
        `${base.name} now has ${share} % of a CPU for each vCPU, ${words.span(wanted.slice)} in every ${words.span(wanted.period)}.`,
        () => this.undo(base, changed.revision),
      );
      this.vm = { ...base, slice: changed.slice_ns, period: changed.period_ns, revision: changed.revision };
      if (changed.warning) this.drawLines([{ text: changed.warning, kind: "bad" }]);
      else this.idle();
    } catch (error) {
      this.base = null;
      this.page.fail(error);
      this.idle();
    }
    this.isApplying = false;
    if (this.vm) this.draw();
  }

  /** @param {Vm} vm @param {number} slice @param {number} period @param {number} revision */
  change(vm, slice, period, revision) {
    // A reservation by `cpu` keeps that form, in which its vCPUs share unused CPU time.
    const amount = vm.byUse
      ? { cpu: `${words.rounded((100 * vm.vcpus * slice) / period)}%`, period: words.length(period) }
      : { slice: words.length(slice), period: words.length(period) };
    const headers = { "if-match": `"${revision}"`, ...once() };
    return ask("PATCH", reservation(vm.name), amount, headers);
  }

  /** @param {Vm} before @param {number} revision of the change that is undone */
  async undo(before, revision) {
    // The service undoes the last change of this user, which another window may have made since.
    const plan = await ask("GET", "/v1/plan").catch(() => null);
    const [last, ...others] = plan?.changes ?? [];
    const isOurs = !others.length && last?.name === before.name && last.revision === revision;
    if (isOurs) await ask("POST", "/v1/undo", {}, once());
    else await this.change(before, before.slice, before.period, revision);
    this.base = null;
    this.page.say(`${before.name} has ${words.span(before.slice)} in every ${words.span(before.period)} again.`);
  }

  drawVerbs() {
    const vm = this.vm;
    if (!vm) return;
    const verbs = byId("verbs");
    if (!this.page.mayChange()) return verbs.replaceChildren();
    const isStopped = vm.state === "paused";
    const key = `${vm.key} ${isStopped} ${vm.state === "contested"}`;
    if (verbs.dataset.key === key) return;
    verbs.dataset.key = key;
    const resumes = isStopped || vm.state === "contested";
    verbs.replaceChildren(
      el("button", { type: "button", onclick: () => this.verb(resumes ? "resume" : "pause") },
        resumes ? "Resume" : "Pause"),
      el("button", { type: "button", class: "danger", onclick: () => this.release() }, "Release"),
    );
  }

  /** @param {"pause"|"resume"} verb */
  async verb(verb) {
    const vm = this.vm;
    if (!vm) return;
    const says = `${vm.name} stops until it is resumed; its users see it hang.`;
    if (verb === "pause" && !(await this.page.confirm(`Pause ${vm.name}?`, says, "Pause"))) return;
    try {
      await ask("POST", `${reservation(vm.name)}/${verb}`, {}, once());
      const back = verb === "pause" ? "resume" : "pause";
      this.page.say(`${vm.name} is ${verb}d.`, async () => {
        await ask("POST", `${reservation(vm.name)}/${back}`, {}, once());
        this.page.say(`${vm.name} is ${back}d again.`);
      });
    } catch (error) {
      this.page.fail(error);
    }
  }

  async release() {
    const vm = this.vm;
    if (!vm) return;
    // The service cannot bind a released reservation to the same process again.
    const isForGood = vm.binding.startsWith("pid:");
    const says = `${vm.name} goes back to ordinary scheduling. Its capacity becomes free.` +
      (isForGood ? " This cannot be undone, because the reservation is for a process id." : "");
    if (!(await this.page.confirm(`Release ${vm.name}?`, says, "Release"))) return;
    try {
      await ask("DELETE", reservation(vm.name), undefined, once());
      this.page.say(`${vm.name} is released.`, isForGood ? undefined : () => this.undoRelease(vm));
      this.show(null);
    } catch (error) {
      this.page.fail(error);
    }
  }

  /** Restores a released reservation with its owner and all its parameters. @param {Vm} vm */
  async undoRelease(vm) {
    const plan = await ask("GET", "/v1/plan");
    const [last, ...others] = plan?.changes ?? [];
    const isOurs = !others.length && last?.name === vm.name && last.is_done && last.after == null;
    if (!isOurs) throw new Error(`Not undone: the release of ${vm.name} is no longer your last change.`);
    await ask("POST", "/v1/undo", {}, once());
    this.page.say(`${vm.name} is reserved again.`);
  }

  /** Shows what kept the VM from running in the last minute. */
  async culprits() {
    const vm = this.vm;
    if (!vm || vm.isHidden) return;
    let lines;
    try {
      lines = culpritLines(await ask("GET", `/v1/why/${encodeURIComponent(vm.name)}`));
    } catch (error) {
      lines = [error instanceof Refused ? error.message : String(error)];
    }
    if (this.vm?.key === vm.key) byId("culprits").replaceChildren(...lines.map((it) => el("li", {}, it)));
  }
}

/** Returns the recorded and predicted numbers of each VM. The worst simulation counts. */
function sums(answer) {
  const all = new Map();
  for (const vcpu of answer.vcpus ?? []) {
    const name = vmOf(vcpu.name);
    const forms = [...Object.values(vcpu.then ?? {}), ...(vcpu.other_phases ?? [])];
    const now = vcpu.now ?? {};
    const worst = (pick) => Math.max(0, ...forms.map((form) => form[pick] ?? 0));
    const sum = all.get(name) ?? {
      name, share: [0, 0], misses: [0, 0], deadlines: 0, waits: [0, 0], answers: [0, 0],
    };
    sum.share[0] += now.share_ppm ?? 0;
    sum.share[1] += forms.length ? Math.min(...forms.map((form) => form.share_ppm ?? 0)) : 0;
    sum.misses[0] += now.misses ?? 0;
    sum.misses[1] += worst("misses");
    sum.deadlines += worst("deadlines");
    sum.waits = [Math.max(sum.waits[0], now.wait_p99_ns ?? 0), Math.max(sum.waits[1], worst("wait_p99_ns"))];
    sum.answers = [
      Math.max(sum.answers[0], now.response_p99_ns ?? 0), Math.max(sum.answers[1], worst("response_p99_ns")),
    ];
    all.set(name, sum);
  }
  return [...all.values()];
}

/** Smallest change of a share that is shown, in millionths of a CPU. */
const POINTS = 5_000;

/** Smallest change of a waiting time that is shown, in nanoseconds. It must also be a fifth. */
const SHORTEST = 100_000;

/** Returns "bad" if the second time is longer by a fifth, "good" if it is shorter by a fifth. */
function compared([now, then]) {
  if (Math.abs(then - now) < SHORTEST || !now || !then) return "";
  return then > 1.2 * now ? "bad" : 1.2 * then < now ? "good" : "";
}

/**
 * Returns lines about the VM `own`, and about other VMs that would have changed.
 * @param {any} answer @param {string} own @param {number} length
 */
function predicted(answer, own, length) {
  const lines = [];
  const rows = sums(answer).sort((a, b) => Number(b.name === own) - Number(a.name === own));
  for (const { name, share, misses, deadlines, waits, answers } of rows) {
    const isOwn = name === own;
    const add = (kind, text) => { if (kind || isOwn) lines.push({ kind, text }); };
    const moved = share[1] - share[0];
    add(moved < -POINTS ? "bad" : moved > POINTS ? "good" : "",
      `${name} would have used ${words.ppm(share[1])} of a CPU; it used ${words.ppm(share[0])}.`);
    add(misses[1] > misses[0] ? "bad" : misses[1] < misses[0] ? "good" : "",
      `${name} would have missed ${misses[1]} of ${words.count(deadlines, "deadline")} in ${words.span(length)}; it missed ${misses[0]}.`);
    const slower = compared(answers);
    if (slower) add(slower, `A burst of ${name} would have taken ${words.span(answers[1])} (p99); it took ${words.span(answers[0])}.`);
    const later = compared(waits);
    if (later && !slower) add(later, `${name} would have waited ${words.span(waits[1])} (p99); it waited ${words.span(waits[0])}.`);
  }
  return lines;
}

/** @param {any} why */
export function culpritLines(why) {
  const sums = new Map();
  let waited = 0;
  let length = 0;
  for (const vcpu of why.vcpus) {
    waited += vcpu.waited_ns;
    length = Math.max(length, vcpu.length_ns ?? why.length_ns);
    for (const it of vcpu.culprits) sums.set(it.says, (sums.get(it.says) ?? 0) + it.waited_ns);
  }
  if (!waited) return [`The VM did not wait in the last ${words.span(length)}.`];
  const sorted = [...sums].sort((a, b) => b[1] - a[1]).slice(0, 5);
  const lines = sorted.map(([says, ns]) => `${words.percent(ns, waited)} ${says}`);
  return [`The VM waited ${words.span(waited)} in ${words.span(length)}, because of:`, ...lines];
}

/** A gamepad: its first axis moves the share, its second one the period, its first button applies. */
class Pad {
  /** @param {Steer} steer */
  constructor(steer) {
    this.steer = steer;
    this.wasPressed = false;
    this.timer = 0;
    window.addEventListener("gamepadconnected", () => {
      this.timer ||= window.setInterval(() => this.look(), 50);
    });
    window.addEventListener("gamepaddisconnected", () => {
      window.clearInterval(this.timer);
      this.timer = 0;
    });
  }

  get pad() {
    return navigator.getGamepads?.().find((pad) => pad) ?? null;
  }

  look() {
    const pad = this.pad;
    if (!pad || !this.steer.vm || byId("handles").hidden) return;
    this.move("share", (pad.axes[0] ?? 0) * 20);
    this.move("period", (pad.axes[3] ?? 0) * 0.5);
    const isPressed = pad.buttons[0]?.pressed ?? false;
    if (isPressed && !this.wasPressed) void this.steer.apply();
    this.wasPressed = isPressed;
  }

  move(id, by) {
    if (Math.abs(by) < (id === "share" ? 4 : 0.25)) return;
    const slider = input(id);
    slider.value = String(Number(slider.value) + Math.round(by));
    this.steer.isByPointer = false;
    this.steer.moved();
  }

  rumble() {
    void this.pad?.vibrationActuator?.playEffect?.("dual-rumble", { duration: 120, strongMagnitude: 0.8 });
  }
}
