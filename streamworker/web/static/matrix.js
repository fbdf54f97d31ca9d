// The matrix of workers and partitions: a row for each worker, a cell for each partition that it owns.
// Where there is room, a partition has its column; else the cells of a worker stand side by side.
import { compact, duration, make, put, whole } from "./words.js";

export const STATES = {
  ".": "running", R: "retrying", D: "draining", A: "acquiring", H: "halted", P: "paused", p: "pausing", U: "unowned",
  "?": "unknown",
};
const NOBODY = "\0nobody", COLUMN_MIN = 22, LABEL = 190, NUMBERED_MAX = 256;

const grid = document.getElementById("matrix"), detail = document.getElementById("detail");
const rows = new Map(), cells = [], head = make("div", "row head");
let frame = null, selected = 0, aligned = false;

function rowOf(id) {
  let row = rows.get(id);
  if (!row) {
    const line = make("div", "row", "", "row"), label = make("div", "who", "", "rowheader");
    const name = make("b"), told = make("span"), box = make("div", "cells", "", "none");
    label.append(name, told);
    line.append(label, box);
    rows.set(id, (row = { line, name, told, box, owned: [] }));
  }
  return row;
}

function cellOf(partition) {
  if (!cells[partition]) {
    const cell = (cells[partition] = make("div", "cell", "", "gridcell"));
    cell.partition = partition;
    cell.tabIndex = partition === selected ? 0 : -1;
    cell.style.setProperty("--p", partition + 1);
  }
  return cells[partition];
}

// A stream that grew begins with a later partition when the group is done with the first ones.
const numberOf = (p) => p + frame.first;

// On a logarithmic scale, so that a cell does not change with each record: 0 to 8.
const level = (lag) => (lag ? Math.min(8, Math.ceil(2 * Math.log10(lag + 1))) : 0);

export function layout() {
  if (!frame) return;
  const count = frame.state.length;
  aligned = (grid.clientWidth - LABEL) / count >= COLUMN_MIN;
  grid.classList.toggle("aligned", aligned);
  grid.classList.toggle("small", !aligned && count > NUMBERED_MAX);
  grid.style.setProperty("--n", count);
  if (aligned) {
    head.replaceChildren(...Array.from({ length: count }, (_, p) => make("span", "", numberOf(p))));
    grid.prepend(head);
  } else head.remove();
  cells.forEach((cell) => (cell.seen = ""));
}

export function draw(next) {
  const resized = frame?.state.length !== next.state.length || frame.first !== next.first;
  frame = next;
  if (resized) {
    cells.splice(next.state.length).forEach((cell) => cell.remove());
    layout();
  }
  const ids = next.workers.map((worker) => worker.id), owned = new Map(ids.map((id) => [id, []]));
  const free = [];
  next.owner.forEach((at, p) => (at >= 0 ? owned.get(ids[at]) : free).push(p));
  if (free.length) owned.set(NOBODY, free);
  for (const [id, row] of rows)
    if (!owned.has(id)) {
      row.line.remove();
      rows.delete(id);
    }
  const focused = document.activeElement;
  let before = aligned ? head : null;
  for (const [id, partitions] of owned) {
    const row = rowOf(id), worker = next.workers[ids.indexOf(id)];
    if (row.line.previousElementSibling !== before || row.line.parentNode !== grid)
      before ? before.after(row.line) : grid.prepend(row.line);
    before = row.line;
    if (row.owned.join() !== partitions.join()) row.box.prepend(...partitions.map(cellOf));
    row.owned = partitions;
    label(row, id, worker);
  }
  if (focused?.partition !== undefined && focused !== document.activeElement) focused.focus();
  for (let p = 0; p < next.state.length; p++) fill(cellOf(p), p);
  wanted(ids);
  tell();
}

function label(row, id, worker) {
  put(row.name, id === NOBODY ? "nobody" : worker.name);
  const odd = worker?.state && worker.state !== "active" ? `${worker.state} ` : "";
  const late = worker?.state === "silent" ? `${duration(worker.beat)} ` : "";
  put(row.told, id === NOBODY ? `${row.owned.length}` : odd + late + (worker.per_s == null ? "" : `${compact(worker.per_s)}/s`));
  row.line.dataset.state = id === NOBODY ? "nobody" : worker.state ?? "";
}

function fill(cell, p) {
  const state = frame.state[p], lag = frame.lags?.[p], seen = `${state} ${aligned ? compact(lag) : level(lag)}`;
  if (cell.seen === seen) return;
  cell.seen = seen;
  cell.dataset.s = state;
  cell.style.setProperty("--l", level(lag));
  const letter = state === "." ? "" : state, wide = aligned && grid.clientWidth - LABEL >= 40 * frame.state.length;
  const number = frame.state.length > NUMBERED_MAX ? "" : String(numberOf(p));
  put(cell, aligned ? [letter, wide && lag != null ? compact(lag) : ""].join(" ").trim() : letter || number);
}

// A partition that goes to another worker is an outline in the row of that worker.
function wanted(ids) {
  grid.querySelectorAll(".ghost").forEach((ghost) => ghost.remove());
  frame.wanted?.forEach((at, p) => {
    if (at < 0 || at === frame.owner[p]) return;
    const ghost = make("div", "cell ghost");
    ghost.style.setProperty("--p", p + 1);
    ghost.setAttribute("aria-hidden", "true");
    rowOf(ids[at]).box.append(ghost);
  });
}

function words(p) {
  const name = (at) => (at >= 0 ? frame.workers[at].name : at === -1 ? "nobody" : "a worker that is gone");
  const known = frame.state[p] !== "?";
  const said = [`Partition ${numberOf(p)}`, STATES[frame.state[p]] + (known ? `, owned by ${name(frame.owner[p])}` : "")];
  if (frame.lags && known) said.push(`lag ${whole(frame.lags[p])}`, `${compact(frame.rates[p])}/s`);
  if (frame.wanted && frame.wanted[p] !== frame.owner[p]) said.push(`goes to ${name(frame.wanted[p])}`);
  const dead = frame.dead?.[numberOf(p)];
  if (dead) said.push(`${whole(dead)} dead`);
  const why = frame.held?.find(([partition]) => partition === numberOf(p))?.[2];
  return said.join(" · ") + (why ? `: ${why}` : "");
}

function tell() {
  if (selected < frame.state.length && (grid.contains(document.activeElement) || grid.matches(":hover")))
    put(detail, words(selected));
}

function choose(cell) {
  if (cells[selected]) cells[selected].tabIndex = -1;
  selected = cell.partition;
  cell.tabIndex = 0;
  cell.setAttribute("aria-label", words(selected));
  tell();
}

grid.addEventListener("focusin", ({ target }) => target.partition !== undefined && choose(target));
grid.addEventListener("mouseover", ({ target }) => target.partition !== undefined && choose(target));
grid.addEventListener("keydown", (event) => {
  const cell = event.target;
  if (cell.partition === undefined) return;
  const row = cell.closest(".row"), own = (line) => [...line.querySelectorAll(".cell:not(.ghost)")];
  const beside = (line, step) => {
    do line = line[step];
    while (line && !own(line).length);
    if (!line) return null;
    const there = own(line), place = own(row).indexOf(cell);
    return aligned ? there.find((each) => each.partition >= cell.partition) ?? there.at(-1) : there[Math.min(place, there.length - 1)];
  };
  const goes = {
    ArrowLeft: () => cell.previousElementSibling, ArrowRight: () => cell.nextElementSibling,
    ArrowUp: () => beside(row, "previousElementSibling"), ArrowDown: () => beside(row, "nextElementSibling"),
    Home: () => own(row)[0], End: () => own(row).at(-1),
  }[event.key];
  if (!goes) return;
  event.preventDefault();
  const next = goes();
  if (next?.partition !== undefined) next.focus();
});
