// Numbers, times and text of others, as the page shows them.

// A name or an error may hold characters that hide or reorder text: they are shown as escapes.
export const shown = (text) =>
  String(text).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);

export function put(element, text) {
  const safe = shown(text);
  if (element.textContent !== safe) element.textContent = safe;
  return element;
}

export function make(kind, name = "", text = "", role = "") {
  const element = document.createElement(kind);
  if (name) element.className = name;
  if (role) element.setAttribute("role", role);
  return text === "" ? element : put(element, text);
}

export const whole = (number) => (number == null ? "–" : Math.round(number).toLocaleString("en"));

export function compact(number) {
  if (number == null) return "–";
  if (number > 0 && number < 0.5) return "<1";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (number >= size * 0.9995) return (number / size).toFixed(number / size < 9.95 ? 1 : 0) + unit;
  return String(Math.round(number));
}

export function duration(ms) {
  if (ms == null) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60e3) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`;
  const s = Math.floor(ms / 1000), two = (n) => String(n).padStart(2, "0");
  if (s < 3600) return `${Math.floor(s / 60)} m ${two(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${two(Math.floor((s % 3600) / 60))} m`;
  return `${Math.floor(s / 86400)} d ${two(Math.floor((s % 86400) / 3600))} h`;
}

export const bytes = (size) => (size == null ? "–" : compact(size).replace(/(\d)([kMG]?)$/, "$1 $2B"));

// All times of the page are in UTC, as those in the text that the server writes. Of another day there is a date.
export const day = (ms = Date.now()) => new Date(ms).toISOString().slice(0, 10);
export const clock = (ms) => (day(ms) === day() ? "" : `${day(ms)} `) + time(ms);
export const time = (ms) => new Date(ms).toISOString().slice(11, 19);

// Draws a table into a section, if what it shows has changed. A column is a name; one that begins with ">" is
// of numbers. A row's cells are texts, or functions that return an element.
export function table(section, columns, rows, nothing = "", key = rows) {
  const state = JSON.stringify([key, nothing]);
  if (section.dataset.state === state) return;
  section.dataset.state = state;
  section.querySelector(".scroll, .none")?.remove();
  if (!rows.length) return void section.append(make("p", "none", nothing));
  const box = make("div", "scroll"), drawn = make("table");
  const head = drawn.createTHead().insertRow(), body = drawn.createTBody();
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", section.querySelector("h2").textContent);
  for (const name of columns) {
    const cell = make("th", name.startsWith(">") ? "number" : "", name.replace(">", ""));
    cell.scope = "col";
    head.append(cell);
  }
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((value, at) => {
      const cell = make("td", columns[at].startsWith(">") ? "number" : "");
      cell.append(typeof value === "function" ? value() : shown(value ?? ""));
      line.append(cell);
    });
  }
  box.append(drawn);
  section.append(box);
}
