// The page in a real browser, with a real service and real processes. It is started by
// `cargo xtask browser`, as root: story.mjs PROGRAM FOLDER, where FOLDER has node_modules.
//
// A user drags a slider, sees the preview, releases it, finds the share of a process changed in
// /proc, and undoes it. A viewer tries all of it and fails.

import { spawn, execFileSync } from "node:child_process";
import { createRequire } from "node:module";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const [program, folder, only] = process.argv.slice(2);
const require = createRequire(path.join(path.resolve(folder), "node_modules", "x.js"));
const { chromium } = require("playwright-core");
const axe = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const work = fs.mkdtempSync(path.join(os.tmpdir(), "slackline-page-"));
const shots = path.join(folder, "screenshots");
fs.mkdirSync(shots, { recursive: true });
const socket = path.join(work, "socket");
const cpu = os.cpus().length - 1;
const started = [];
const problems = [];
let service = null;

// Id of a user to whom the story grants the role viewer.
const VIEWER = 65533;

// Group that gives access. The host's list of groups is replaced for the service alone.
const GROUP = 65532;

function start(command, args, options = {}) {
  const child = spawn(command, args, { stdio: ["ignore", "ignore", "pipe"], ...options });
  child.said = "";
  child.stderr.on("data", (data) => { child.said += data; });
  started.push(child);
  return child;
}

function slackline(args, options = {}) {
  return execFileSync(program, [...args, "--socket", socket], { encoding: "utf8", ...options });
}

function check(is, says) {
  if (!is) throw new Error(says);
}

async function until(what, is, seconds = 20) {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    const value = await is();
    if (value) return value;
    if (Date.now() > end) throw new Error(`waited ${seconds} s for ${what}`);
    await sleep(100);
  }
}

/** CPU time of a process in clock ticks of 10 ms. */
function used(pid) {
  const stat = fs.readFileSync(`/proc/${pid}/stat`, "utf8");
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return Number(fields[11]) + Number(fields[12]);
}

/** Measures the share of a CPU that a process uses for `ms` milliseconds, in percent. */
async function share(pid, ms) {
  const [before, from] = [used(pid), performance.now()];
  await sleep(ms);
  return (1000 * (used(pid) - before)) / (performance.now() - from);
}

function busy() {
  return start("sh", ["-c", "while :; do :; done"]);
}

async function serve() {
  const prices = path.join(work, "prices.toml");
  fs.writeFileSync(prices, 'currency = "EUR"\ncpu-hour = "0.04"\n');
  const args = ["serve", "--cpus", String(cpu), "--state", path.join(work, "state"), "--prices", prices,
    "--socket", socket, "--page", "127.0.0.1:0"];
  const groups = path.join(work, "group");
  fs.writeFileSync(groups, `root:x:0:\nslackline:x:${GROUP}:\n`);
  const script = 'mount --bind "$0" /etc/group && exec "$@"';
  const daemon = start("unshare", ["--mount", "sh", "-c", script, groups, program, ...args]);
  service = daemon;
  await until("the service", () => {
    check(daemon.exitCode === null, `the service ended: ${daemon.said}`);
    try { slackline(["list"], { stdio: "pipe" }); return true; } catch { return false; }
  });
  return daemon;
}

async function open(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) problems.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => problems.push(`page: ${error.message}`));
  page.on("request", (request) => {
    if (!request.url().startsWith(new URL(url).origin)) problems.push(`asks ${request.url()}`);
  });
  await page.goto(url);
  return page;
}

/** Returns the address of the page with a new code. */
function address(options = {}) {
  return execFileSync(program, ["page", "--socket", socket], { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"], ...options }).trim();
}

async function checkAccess(page, what) {
  await page.evaluate(axe).catch(() => {});
  const found = await page.evaluate(() => globalThis.axe?.run(document, { resultTypes: ["violations"] }));
  check(found, "axe-core did not run");
  for (const it of found.violations) {
    problems.push(`${what}: ${it.id}: ${it.help}: ${it.nodes.map((node) => node.target).join(" ")}`);
  }
}

/** Moves the share slider with the mouse, in steps, without releasing it. */
async function drag(page, to) {
  const slider = page.locator("#share");
  await slider.scrollIntoViewIfNeeded();
  const box = await slider.boundingBox();
  const at = Number(await slider.inputValue());
  const x = (value) => box.x + 8 + ((box.width - 16) * (value - 1)) / 999;
  const y = box.y + box.height / 2;
  await page.mouse.move(x(at), y);
  await page.mouse.down();
  for (let step = 1; step <= 8; step += 1) {
    await page.mouse.move(x(at + ((to - at) * step) / 8), y);
    await sleep(30);
  }
}

async function story(browser) {
  const [web, db] = [busy(), busy()];
  slackline(["reserve", "web", "--slice", "2ms", "--period", "10ms", "--exact", "--for", `pid:${web.pid}`]);
  slackline(["reserve", "db", "--slice", "4ms", "--period", "20ms", "--exact", "--for", `pid:${db.pid}`]);
  const url = address();
  check(/^http:\/\/127\.0\.0\.1:\d+\/#[0-9a-f]{64}$/.test(url), `not an address: ${url}`);
  const from = performance.now();
  const page = await open(browser, url);
  await page.waitForSelector("#vm-rows tr");
  console.log(`first rows after ${Math.round(performance.now() - from)} ms`);
  check(!page.url().includes("#"), "the code stays in the address");

  await page.getByRole("button", { name: "web", exact: true }).click();
  await page.waitForSelector("#steer:not([hidden])");
  // The recording of the preview must cover some seconds.
  await sleep(4000);
  const before = await share(web.pid, 1500);
  check(before > 15 && before < 25, `web has ${before} %, 20 % is reserved`);

  await drag(page, 400);
  await until("a preview", async () => /would have used|annot predict/.test(await page.locator("#preview").innerText()));
  console.log(`preview: ${(await page.locator("#preview").innerText()).replaceAll("\n", " ")}`);
  const still = JSON.parse(slackline(["list", "web", "--json"]));
  check(still.slice_ns === 2e6, "dragging has changed the reservation");
  await page.screenshot({ path: path.join(shots, "drag.png"), fullPage: true });
  await page.mouse.up();
  const released = performance.now();
  await page.waitForSelector("#undo:visible");
  const after = await until("the share to change", async () => {
    const now = await share(web.pid, 500);
    return now > 35 && now < 45 ? now : 0;
  }, 5);
  const took = performance.now() - released;
  console.log(`web has ${before.toFixed(1)} %, then ${after.toFixed(1)} % after ${Math.round(took)} ms`);
  check(took < 2500, `the share changed after ${took} ms`);
  await page.screenshot({ path: path.join(shots, "light.png"), fullPage: true });
  await checkAccess(page, "light");

  await page.locator("#undo").click();
  await until("the undo", () => JSON.parse(slackline(["list", "web", "--json"])).slice_ns === 2e6);
  const undone = await share(web.pid, 1500);
  check(undone > 15 && undone < 25, `web has ${undone} % after the undo`);

  // Arrow keys move the slider. Only Enter applies the change.
  await page.locator("#share").focus();
  for (let press = 0; press < 5; press += 1) await page.keyboard.press("ArrowRight");
  await page.getByRole("button", { name: "Apply" }).waitFor();
  check(JSON.parse(slackline(["list", "web", "--json"])).slice_ns === 2e6, "an arrow key has applied the change");
  await page.keyboard.press("Enter");
  await until("the keys", () => JSON.parse(slackline(["list", "web", "--json"])).slice_ns === 2_050_000);

  await page.getByRole("button", { name: "Pause" }).click();
  await page.locator("#ask-yes").click();
  await page.getByRole("button", { name: "Resume" }).waitFor();
  check((await share(web.pid, 500)) < 3, "a paused VM runs");
  await page.getByRole("button", { name: "Resume" }).click();
  await page.getByRole("button", { name: "Pause" }).waitFor();

  await page.emulateMedia({ colorScheme: "dark" });
  await page.getByRole("button", { name: "by VM" }).click();
  // The timeline is drawn only while it is visible.
  await page.locator("#lanes").scrollIntoViewIfNeeded();
  await sleep(1500);
  await page.screenshot({ path: path.join(shots, "dark.png"), fullPage: true });
  await checkAccess(page, "dark");
  await page.setViewportSize({ width: 400, height: 800 });
  await sleep(500);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth);
  check(wide <= 400, `the page is ${wide} pixels wide at 400`);
  await page.screenshot({ path: path.join(shots, "narrow.png"), fullPage: true });
  await checkAccess(page, "narrow");
  return { page, url, web };
}

/** Tries the same actions as a viewer, who may change nothing. */
async function viewer(browser, web) {
  slackline(["access", "add", String(VIEWER), "--role", "viewer"]);
  fs.chmodSync(work, 0o755);
  const url = address({ uid: VIEWER, gid: GROUP });
  const page = await open(browser, url);
  await page.waitForSelector("#vm-rows tr");
  await page.getByRole("button", { name: "web", exact: true }).click();
  await page.waitForSelector("#steer:not([hidden])");
  check(!(await page.locator("#share").isVisible()), "a viewer sees a slider");
  check(!(await page.getByRole("button", { name: "Pause" }).isVisible()), "a viewer may pause");
  check((await page.locator("#role").innerText()) === "viewer", "the role is not shown");
  const answers = await page.evaluate(async () => {
    const headers = { "x-slackline-token": localStorage.getItem("slackline-token"), "content-type": "application/json" };
    const ask = async (method, path, body) => (await fetch(path, { method, headers, body })).status;
    return [
      await ask("PATCH", "/v1/reservations/web", '{"slice":"5ms"}'),
      await ask("POST", "/v1/reservations/web/pause", "{}"),
      await ask("DELETE", "/v1/reservations/web"),
      await ask("PUT", "/v1/reservations/new", '{"slice":"1ms","for":"pid:1"}'),
      await ask("PUT", "/v1/access/65533", '{"role":"administrator"}'),
    ];
  });
  check(answers.every((status) => status === 403), `a viewer gets ${answers}`);
  problems.splice(0, problems.length, ...problems.filter((it) => !it.includes("403")));
  check(JSON.parse(slackline(["list", "web", "--json"])).state === "active", "a viewer changed web");
  check((await share(web.pid, 500)) > 10, "a viewer stopped web");
  await page.screenshot({ path: path.join(shots, "viewer.png") });
  await checkAccess(page, "viewer");
  // A grant that is revoked ends the session and its stream.
  slackline(["access", "revoke", String(VIEWER)]);
  await page.waitForSelector("#login:not([hidden])", { timeout: 10_000 });
  check((await page.locator("#vm-rows tr").first().isVisible()) === false, "numbers stay visible");
  problems.splice(0, problems.length, ...problems.filter((it) => !it.includes("401")));
}

/** Checks that the page draws the same timelines as a report from the data of the report. */
async function sameTimeline(browser, live) {
  const file = path.join(work, "report.html");
  execFileSync(program, ["sim", "scenarios/mixed.toml", "--report", file], { stdio: "pipe" });
  const text = fs.readFileSync(file, "utf8");
  const [data] = JSON.parse(/^const timelines = (.*);$/m.exec(text)[1]);
  const report = await (await browser.newContext({ viewport: { width: 1000, height: 900 } })).newPage();
  await report.goto(`file://${file}`);
  const pictures = await report.evaluate(() => {
    const style = getComputedStyle(document.documentElement);
    const [ink, line] = ["--text", "--grid"].map((name) => style.getPropertyValue(name));
    return [...document.querySelectorAll("canvas[data-order]")].map((canvas) => {
      return { order: canvas.dataset.order, width: canvas.clientWidth, ink, line, picture: canvas.toDataURL() };
    });
  });
  check(pictures.length === 2, `the report has ${pictures.length} pictures`);
  for (const { order, width, ink, line, picture } of pictures) {
    const again = await live.evaluate(async ({ data, order, width, ink, line }) => {
      const { Timeline, heightOf, paint, vmOf } = await import("/page/timeline.js");
      const model = new Timeline();
      const canvas = document.createElement("canvas");
      model.add(data);
      const vms = [...new Set(model.vcpus.slice(1).map(vmOf))];
      const height = heightOf(model, order, vms);
      [canvas.width, canvas.height] = [width, height];
      const empty = canvas.toDataURL();
      paint(canvas.getContext("2d"), model, { width, height, order, vms, selected: "", end: model.end, isDark: false, ink, line });
      return { picture: canvas.toDataURL(), empty };
    }, { data, order, width, ink, line });
    check(again.picture !== again.empty, `the picture by ${order} is empty`);
    check(again.picture === picture, `the report and the page draw different pictures by ${order}`);
  }
}

/** Makes the picture of README: four guests, and a slider that is dragged. */
async function picture(browser) {
  const load = (...args) => start(program, ["load", ...args]).pid;
  const guests = [
    ["game", load("periodic", "--period", "10ms", "--work", "1500us"), "2ms", "10ms"],
    ["film", load("periodic", "--period", "40ms", "--work", "5ms"), "6ms", "40ms"],
    ["shop", load("periodic", "--period", "25ms", "--work", "3ms", "--gap", "exponential 10ms"), "2ms", "20ms"],
    ["build", busy().pid, "10ms", "100ms"],
  ];
  for (const [name, pid, slice, period] of guests) {
    slackline(["reserve", name, "--slice", slice, "--period", period, "--exact", "--for", `pid:${pid}`]);
  }
  const page = await open(browser, address(), { viewport: { width: 1000, height: 900 } });
  await page.waitForSelector("#vm-rows tr");
  await sleep(11_000);
  await page.getByRole("button", { name: "by VM" }).click();
  await page.getByRole("button", { name: "game", exact: true }).click();
  await page.waitForSelector("#culprits li");
  await drag(page, 90);
  await until("a preview", async () => /would have used|annot predict/.test(await page.locator("#preview").innerText()));
  check(!/annot predict/.test(await page.locator("#preview").innerText()), "no prediction: try again on a quiet host");
  await page.setViewportSize({ width: 1000, height: 1000 });
  await sleep(300);
  const bottom = await page.evaluate(() => document.getElementById("lanes-under").getBoundingClientRect().bottom + 14);
  await page.screenshot({ path: path.join(shots, "picture.png"), clip: { x: 0, y: 0, width: 1000, height: Math.ceil(bottom) } });
  await page.mouse.up();
}

/** Measures the cost of the page with 100 VMs of one vCPU: previews, frames and bytes. */
async function measure(browser, daemon) {
  const vms = Number(process.env.VMS ?? 100);
  for (let nth = 0; nth < vms; nth += 1) {
    const { pid } = start(program, ["load", "periodic", "--period", "100ms", "--work", "300us"]);
    const name = `vm-${String(nth).padStart(3, "0")}`;
    slackline(["reserve", name, "--slice", "500us", "--period", "100ms", "--for", `pid:${pid}`]);
  }
  const page = await open(browser, address());
  await page.waitForSelector("#vm-rows tr");
  const client = await page.context().newCDPSession(page);
  await client.send("Network.enable");
  let bytes = 0;
  client.on("Network.dataReceived", (event) => { bytes += event.dataLength; });
  await page.locator("#by-vm").click();
  await page.locator("#lanes").scrollIntoViewIfNeeded();
  await sleep(11_000);
  const children = () => fs.readFileSync(`/proc/${daemon.pid}/task/${daemon.pid}/children`, "utf8").trim().split(" ").filter(Boolean).map(Number);
  const all = () => [daemon.pid, ...children()].reduce((sum, pid) => sum + used(pid), 0);
  const [before, from] = [all(), performance.now()];
  bytes = 0;
  const frames = await page.evaluate(() => new Promise((resolve) => {
    const times = [];
    const began = performance.now();
    const next = (now) => { times.push(now); if (now - began < 5000) requestAnimationFrame(next); else resolve(times); };
    requestAnimationFrame(next);
  }));
  const gaps = frames.slice(1).map((at, index) => at - frames[index]).sort((a, b) => a - b);
  const seconds = (performance.now() - from) / 1000;
  console.log(`${(gaps.length / 5).toFixed(1)} frames/s, p95 ${gaps[Math.floor(gaps.length * 0.95)].toFixed(1)} ms, ` +
    `${(bytes / 1024 / seconds).toFixed(1)} KiB/s, service ${((all() - before) / seconds).toFixed(1)} % of a CPU`);
  await page.getByRole("button", { name: "vm-000", exact: true }).click();
  const times = await page.evaluate(async () => {
    const headers = { "x-slackline-token": localStorage.getItem("slackline-token"), "content-type": "application/json" };
    const times = [];
    for (let nth = 0; nth < 20; nth += 1) {
      const from = performance.now();
      const body = JSON.stringify({ since: "10s", set: [{ name: "vm-000", slice: `${500 + 10 * nth}us`, period: "100ms" }] });
      const answer = await fetch("/v1/whatif", { method: "POST", headers, body });
      await answer.text();
      times.push([answer.status, performance.now() - from]);
    }
    return times;
  });
  console.log(`previews: ${times.map(([status, ms]) => `${status} ${Math.round(ms)} ms`).join(", ")}`);
  await page.screenshot({ path: path.join(shots, "hundred.png") });
}

async function main() {
  const daemon = await serve();
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"],
  });
  try {
    if (only === "picture") return await picture(browser);
    if (only === "measure") return await measure(browser, daemon);
    const { page, url, web } = await story(browser);
    await sameTimeline(browser, page);
    const again = await open(browser, url);
    await again.waitForSelector("#login:not([hidden])");
    check(/used/.test(await again.locator("#login-why").innerText()), "a used code is not refused");
    problems.splice(0, problems.length, ...problems.filter((it) => !it.includes("401")));
    await viewer(browser, web);
  } finally {
    await browser.close();
  }
}

let failed = false;
setTimeout(() => {
  console.error("the story takes more than 240 s");
  void end(1);
}, 240_000).unref();

/** Ends the service first, so that it restores every thread. */
async function end(code) {
  if (service && service.exitCode === null) {
    service.kill("SIGTERM");
    await Promise.race([new Promise((resolve) => { service.once("exit", resolve); }), sleep(5000)]);
  }
  for (const child of started) child.kill("SIGKILL");
  fs.rmSync(work, { recursive: true, force: true });
  process.exit(code);
}

try {
  await main();
} catch (error) {
  failed = true;
  console.error(error.stack);
}
// If other programs use the CPU, the service refuses to predict with status 503. That is not a fault of the page.
const faults = problems.filter((problem) => !problem.includes("503"));
for (const problem of faults) console.error(problem);
await end(failed || faults.length ? 1 : 0);
