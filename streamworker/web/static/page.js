// Takes frames from the server, and passes them on to what is drawn of them.
import * as charts from "./charts.js";
import * as graph from "./graph.js";
import * as matrix from "./matrix.js";
import { bytes, clock, compact, day, duration, make, put, table, whole } from "./words.js";

const $ = (id) => document.getElementById(id);
const RETRY_FIRST_MS = 1000, RETRY_MAX_MS = 8000;
// The server sends something every 5 s. Nobody closes a connection whose server hangs, or whose way is gone.
const QUIET_MS = 15_000;
let source = null, frame = null, facts = {}, shownAt = null, retry = 0, retryMs = RETRY_FIRST_MS, today = day(), heardAt = null;
// What a test measures: how many frames were drawn, and the milliseconds of script that the last ones took.
const frames = (window.framesDrawn = { count: 0, took: [] });

const wanted = () => decodeURIComponent(location.hash.slice(1));

function listen() {
  stop();
  source = new EventSource(`events?processor=${encodeURIComponent(wanted())}`);
  const on = (name, act) => source.addEventListener(name, ({ data }) => {
    heardAt = Date.now();
    const began = performance.now();
    act(JSON.parse(data));
    if (name !== "frame") return;
    frames.count += 1;
    if (frames.took.push(performance.now() - began) > 60) frames.took.shift();
  });
  on("hello", hello);
  on("facts", (news) => drawFacts((facts = news)));
  on("frame", arrived);
  on("problem", banner);
  on("beat", () => {});
  source.onopen = () => (retryMs = RETRY_FIRST_MS);
  source.onerror = lost;
}

function stop() {
  clearTimeout(retry);
  source?.close();
  heardAt = null;
}

setInterval(() => {
  if (heardAt === null || Date.now() - heardAt < QUIET_MS) return;
  banner(`The server of this page has sent nothing for ${duration(Date.now() - heardAt)}.`);
}, 1000);

// A browser listens again by itself if a connection breaks, but not after an answer that is no stream: the 502 of a
// proxy whose server restarts, or the 401 of a server that has another token.
async function lost() {
  const its = source;
  heardAt = null;
  if (its.readyState === EventSource.CLOSED) {
    retry = setTimeout(listen, retryMs);
    retryMs = Math.min(2 * retryMs, RETRY_MAX_MS);
  }
  const status = await fetch("at").then((answer) => answer.status, () => 0);
  if (source !== its || its.readyState === EventSource.OPEN) return;
  const why = status === 401 ? "needs another token. Add ?token=... to the address of this page once"
    : status > 299 ? `cannot be reached: the answer is ${status}` : "does not answer";
  banner(`The server of this page ${why}.`);
}

function hello({ app, processor, points }) {
  put($("app"), app);
  document.title = `${app} – streamworker`;
  charts.begin(points);
  now();
  if (wanted() !== processor) history.replaceState(null, "", `#${encodeURIComponent(processor)}`);
}

function arrived(news) {
  frame = news;
  const { group, every, edges } = news;
  banner("");
  put($("clock"), `${clock(group.t)} UTC`);
  if (today !== day()) (today = day()), facts.record && drawFacts(facts);
  tabs(every, group.processor);
  figures(group);
  charts.add(group);
  if (shownAt === null) matrix.draw(group);
  scrubber(group.t);
  held(group);
  readers(group);
  if (facts.streams) graph.draw(edges, facts.streams);
}

function banner(text) {
  $("banner").hidden = !text;
  put($("banner"), text && frame ? `${text} What you see is of ${clock(frame.group.t)} UTC.` : text);
}

function tabs(every, selected) {
  const box = $("tabs");
  every.forEach(({ processor, lag, committed, state }, at) => {
    const tab = box.children[at] ?? box.appendChild(make("button", "", "", "tab"));
    if (!tab.firstChild) tab.append(make("b"), make("span"));
    tab.type = "button";
    tab.dataset.name = processor;
    const is = processor === selected, bad = /[HU?]/.test(state) ? "bad" : /[RPp]/.test(state) ? "odd" : "";
    tab.setAttribute("aria-selected", is);
    tab.setAttribute("aria-controls", "panel");
    tab.tabIndex = is ? 0 : -1;
    tab.dataset.state = bad;
    put(tab.firstChild, processor);
    put(tab.lastChild, `${compact(committed)}/s · lag ${compact(lag)}${bad ? " !" : ""}`);
    if (is) $("panel").setAttribute("aria-label", processor);
  });
}

function figures(group) {
  const count = {};
  for (const { state } of group.workers) count[state] = (count[state] ?? 0) + 1;
  const others = Object.entries(count).map(([state, n]) => (state === "active" ? "" : ` + ${n} ${state}`)).join("");
  const behind = group.lag > group.committed && group.committed ? ` in ${duration((1000 * group.lag) / group.committed)}` : "";
  const dead = Object.values(group.dead).reduce((sum, n) => sum + n, 0);
  const all = {
    workers: `${count.active ?? 0}${others}`, partitions: whole(group.state.length), lag: whole(group.lag) + behind,
    in: `${compact(group.arrived)}/s`, out: `${compact(group.committed)}/s`, oldest: group.age ? duration(group.age) : "0 s",
    dead: whole(dead), outbox: whole(group.outbox), generation: String(group.generation),
  };
  const list = $("figures");
  for (const [name, value] of Object.entries(all)) {
    let pair = list.querySelector(`[data-name="${name}"]`);
    if (!pair) {
      pair = list.appendChild(make("div"));
      pair.dataset.name = name;
      pair.append(make("dt", "", name), make("dd"));
    }
    put(pair.lastChild, value);
    pair.classList.toggle("bad", name === "dead" && dead > 0);
  }
}

function held(group) {
  const known = (facts.failing ?? []).filter((each) => each.processor === group.processor);
  const value = (p, why) => known.find((each) => each.partition === p && why.includes(each.entry))?.value ?? "";
  const rows = group.held.map(([p, state, why]) => [p, state, why, ...(known.length ? [value(p, why)] : [])]);
  if (group.held_count > rows.length) rows.push(["", "", `and ${group.held_count - rows.length} more partitions`]);
  for (const problem of group.problems) rows.unshift(["", "problem", problem]);
  const free = group.state.split("U").length - 1, hidden = facts.hidden?.records;
  if (hidden) rows.push(["", "", `What the records hold is not shown: ${hidden}`]);
  const nothing = free ? `No worker runs ${free} of ${group.state.length} partitions.`
    : group.state ? "No partition is held up." : "The stream has not been made yet.";
  table($("held"), [">partition", "state", "why", ...(known.length ? ["record"] : [])], rows, nothing);
}

function readers(group) {
  const rows = group.readers.map((each) =>
    [each.name, whole(each.rows), whole(each.lag), `${compact(each.per_s)}/s`, each.failed || `read ${duration(each.age)} ago`]);
  $("readers").hidden = !rows.length;
  table($("readers"), ["query", ">rows", ">behind", ">rate", "last"], rows);
  const ends = group.tables.some((each) => each.ends);
  const tables = group.tables.map((each) => [each.name, whole(each.keys), bytes(each.bytes), ...(ends ? [each.ends] : [])]);
  $("tables").hidden = !tables.length;
  table($("tables"), ["table", ">keys", ">memory", ...(ends ? ["ends"] : [])], tables);
}

function drawFacts({ record, letters, timers, archives = [], hidden }) {
  const own = (each) => each.processor === wanted();
  const changes = record.filter(own), button = (change) => () => {
    const element = make("button", "time", clock(change.at_ms));
    element.addEventListener("click", () => show(change.at_ms + 1000));
    return element;
  };
  table($("record"), ["time", "cause", "who", ">moved", ">took"], changes.slice(0, 100).map((change) =>
    [button(change), change.cause, change.member, whole(change.moved), change.superseded ? "superseded" : change.ms === null ? "moving" : duration(change.ms)]),
    "No rebalance and no order is known.", [today, changes]);
  marks(changes);
  const values = letters.some((letter) => letter.value !== null);
  table($("letters"), ["letter", "time", ">attempts", "error", ...(values ? ["record"] : [])],
    letters.filter(own).map((each) =>
      [each.letter, clock(each.at_ms), whole(each.attempts), each.error, ...(values ? [each.value] : [])]),
    hidden.letters ?? "No dead letter was found.");
  $("archives").hidden = !archives.length;
  table($("archives"), ["stream", "archived up to", ">only there", ">waiting", ">oldest waits", "where", "held up"],
    archives.map((each) => [each.stream, each.upto_ms ? clock(each.upto_ms) : "", whole(each.only), whole(each.waiting), each.waiting ? duration(each.waits_ms) : "", each.url, each.why]));
  $("timers").hidden = !timers.length;
  table($("timers"), ["timer", "runs", "on", "last", "next", "took", "failing"],
    timers.map((each) => [each.timer, each.runs, each.on, hidden.timers ?? each.last, each.next, each.took, each.failing]));
}

// The marks stand at their times; which part of the time is seen moves with each frame.
const since = Date.now();
function marks(changes) {
  $("marks").replaceChildren(...changes.map((change) => {
    const mark = document.createElementNS("http://www.w3.org/2000/svg", "path");
    mark.setAttribute("d", `M${change.at_ms - since} 0v10`);
    mark.setAttribute("class", change.cause === "death" ? "bad" : change.generation ? "" : "order");
    return mark;
  }));
}

function scrubber(last) {
  const range = $("scrub"), first = Math.floor(charts.from());
  range.min = first;
  range.max = last;
  if (shownAt === null) range.value = last;
  $("marks").setAttribute("viewBox", `${first - since} 0 ${Math.max(1, last - first)} 10`);
}

async function show(ms) {
  shownAt = ms;
  $("scrub").value = ms;
  $("now").disabled = false;
  const asked = `at?processor=${encodeURIComponent(wanted())}&ms=${Math.round(ms)}`;
  const then = await fetch(asked).then((answer) => answer.json()).catch(() => null);
  if (shownAt !== ms) return;
  if (then) matrix.draw(then);
  put($("live-title"), then ? `Workers and partitions at ${clock(ms)}` : `Nothing is known of ${clock(ms)}`);
  $("live").classList.add("past");
}

function now() {
  shownAt = null;
  $("now").disabled = true;
  $("live").classList.remove("past");
  put($("live-title"), "Workers and partitions");
  if (frame) matrix.draw(frame.group);
}

$("scrub").addEventListener("input", ({ target }) => (Number(target.value) >= Number(target.max) ? now() : show(Number(target.value))));
$("now").addEventListener("click", now);
$("tabs").addEventListener("click", ({ target }) => {
  const tab = target.closest("[role=tab]");
  if (tab) location.hash = encodeURIComponent(tab.dataset.name);
});
$("tabs").addEventListener("keydown", ({ key, target }) => {
  const step = { ArrowLeft: "previousElementSibling", ArrowRight: "nextElementSibling" }[key];
  const tab = step && target[step];
  if (tab) (tab.focus(), tab.click());
});
window.addEventListener("hashchange", () => {
  frame = null;
  listen();
});
// A browser holds few connections to a server, for all of its tabs: only those that are seen have one.
document.addEventListener("visibilitychange", () => (document.hidden ? stop() : listen()));

const dark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};
function theme(chosen) {
  if (chosen) document.documentElement.dataset.theme = chosen;
  put($("theme"), dark() ? "Light" : "Dark");
  if (frame) charts.build();
}
$("theme").addEventListener("click", () => {
  theme(dark() ? "light" : "dark");
  localStorage.setItem("theme", document.documentElement.dataset.theme);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme());
theme(localStorage.getItem("theme"));

for (const [letter, state] of Object.entries(matrix.STATES)) {
  if ("p?".includes(letter)) continue;
  const item = make("li"), mark = make("i", "cell", letter === "." ? "" : letter);
  mark.dataset.s = letter;
  item.append(mark, state);
  $("legend").append(item);
}
new ResizeObserver(() => {
  matrix.layout();
  if (frame && shownAt === null) matrix.draw(frame.group);
}).observe($("matrix"));
listen();
